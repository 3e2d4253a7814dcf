-- What took effect since a seq, and the artifacts that were recorded before.
select seq, id::text as id, type
from views.events
where tenant = $1 and thread = $2 and effect = 'applied' and seq >= $3
union all
select seq, id::text as id, type
from views.events
where tenant = $1 and thread = $2 and effect = 'applied' and type = 'artifact.recorded' and seq < $3
order by seq

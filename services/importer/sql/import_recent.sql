-- What took effect since a seq, and the artifacts that were recorded before.
select seq, id::text as id, type
from views.events
where tenant = $1 and thread = $2 and effect = 'applied' and (seq >= $3 or type = 'artifact.recorded')
order by seq

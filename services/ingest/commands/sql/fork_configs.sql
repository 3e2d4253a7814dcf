-- The configurations of a thread up to a seq ($3), in order: the first one is whole, the others are patches. $4 at most.
select seq, data::text as data
from views.events
where tenant = $1 and thread = $2 and seq <= $3
    and type in ('thread.created', 'thread.configured') and effect = 'applied'
order by seq
limit $4

-- The last input with this id: ids that were forgotten can be used again.
with found as materialized (
    select seq, dropped, turn, step
    from views.items
    where tenant = $1 and thread = $2 and input = $3
)
select
    case
        when dropped = 'input.withdrawn' then 'withdrawn'
        when dropped is not null then 'discarded'
        when turn is not null then 'taken'
        else 'queued'
    end as status,
    turn, step
from found
order by seq desc
limit 1

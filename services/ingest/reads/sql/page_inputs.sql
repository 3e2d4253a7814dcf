select
    i.seq, i.input, coalesce(e.data ->> 'mode', 'queue') as mode, (e.data ->> 'expected_turn')::bigint as expected_turn,
    e.actor as submitted_by, e.time as submitted_at,
    case
        when i.dropped = 'input.withdrawn' then 'withdrawn'
        when i.dropped is not null then 'discarded'
        when i.turn is not null then 'taken'
        else 'queued'
    end as status,
    i.dropped, i.turn, i.step, i.content -> 'content' as items
from views.items as i
join views.events as e on e.tenant = i.tenant and e.thread = i.thread and e.seq = i.seq
where i.tenant = $1 and i.thread = $2 and i.input is not null and i.seq > $3::bigint
order by i.seq
limit $4

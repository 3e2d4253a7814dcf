-- A call by the id that its session gave it, or by the mark of the child that works for it, and the record that proposed
-- it. Where a turn was told again, the call of its last telling.
with recursive family (thread, above) as (
    select unnest($2::text[]), 0
    union
    select t.thread, f.above + 1
    from family f
    join views.threads t on t.tenant = $1 and t.parent = f.thread and t.lineage_kind = 'child'
    where f.above < $5
),
named as (
    select f.thread, f.above, i.call
    from family f
    join views.items i on i.tenant = $1 and i.thread = f.thread
    where i.kind = 'tool_call' and i.content ->> 'provider_id' = $3
    union
    select f.thread, f.above, d.data ->> 'call'
    from family f
    join views.events d on d.tenant = $1 and d.thread = f.thread
    where d.type = 'tool_call.dispatched' and d.effect = 'applied' and right(d.source, length($4)) = $4
)
select n.thread, t.depth, n.call, e.seq, e.chain
from named n
join views.threads t on t.tenant = $1 and t.thread = n.thread
join views.items i on i.tenant = $1 and i.thread = n.thread and i.kind = 'tool_call' and i.call = n.call
join views.events e on e.tenant = $1 and e.thread = i.thread and e.seq = i.seq
order by n.above, e.seq desc
limit 1

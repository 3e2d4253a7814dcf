-- The turns of a thread, with the record that ended each, in their order.
select t.turn, t.inputs, t.started_seq, coalesce(t.ended_seq, 0) as ended_seq, coalesce(e.chain, '') as chain,
    s.source, t.input_tokens, t.output_tokens
from views.turns t
join views.events s on s.tenant = t.tenant and s.thread = t.thread and s.seq = t.started_seq
left join views.events e on e.tenant = t.tenant and e.thread = t.thread and e.seq = t.ended_seq
where t.tenant = $1 and t.thread = $2
order by t.turn

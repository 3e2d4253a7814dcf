-- A call by the id that the session gave it, and the record that proposed it.
select i.call, e.seq, e.chain
from views.items i
join views.events e on e.tenant = i.tenant and e.thread = i.thread and e.seq = i.seq
where i.tenant = $1 and i.thread = $2 and i.kind = 'tool_call' and i.content ->> 'provider_id' = $3
order by i.seq
limit 1

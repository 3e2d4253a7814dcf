select t.status, c.call, c.settled_seq as seq, c.changes
from views.turns t
left join views.tool_calls c
    on c.tenant = t.tenant and c.thread = t.thread and c.turn = t.turn and c.changes is not null
where t.tenant = $1 and t.thread = $2 and t.turn = $3
order by c.settled_seq
limit $4

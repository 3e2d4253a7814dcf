select
    c.thread, c.call, c.turn, c.step, c.index, c.attempts as attempt, c.tool, c.args, c.malformed, c.call_hash,
    c.approval_reason as reason, c.approval_requested_at as requested_at, c.approval_expires_at as expires_at,
    t.status as turn_status
from views.tool_calls as c
left join views.turns as t on t.tenant = c.tenant and t.thread = c.thread and t.turn = c.turn
where
    c.tenant = $1
    and c.thread = $2
    and c.status = 'waiting'
    and (c.thread, c.turn, c.step, c.index) > ($3::text, $4::bigint, $5::bigint, $6::bigint)
order by c.thread, c.turn, c.step, c.index
limit $7

select
    c.thread, c.call, c.turn, c.step, c.index, c.attempts as attempt, c.tool, c.args, c.call_hash, c.effect, c.pool,
    c.executor, coalesce(c.started_at, c.dispatched_at) as claimed_at, c.evidence, c.lost_attempts, c.idempotency_key,
    t.status as turn_status
from views.tool_calls as c
left join views.turns as t on t.tenant = c.tenant and t.thread = c.thread and t.turn = c.turn
where
    c.tenant = $1
    and c.thread = $2
    and c.status = 'unknown'
    and (c.thread, c.turn, c.step, c.index) > ($3::text, $4::bigint, $5::bigint, $6::bigint)
order by c.thread, c.turn, c.step, c.index
limit $7

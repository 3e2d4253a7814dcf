-- Calls of a tenant of which is not known whether they ran, paged as approvals are.
select thread, call, turn, step, index, tool, args, effect, attempts, executor, started_at, evidence
from views.unknown_calls
where tenant = $1 and (thread, turn, step, index) > ($2::text, $3::bigint, $4::bigint, $5::int)
order by thread, turn, step, index
limit 100

-- Calls of a tenant whose outcome is unknown: they may or may not have run. Page them as the approvals.
select thread, call, turn, step, index, tool, args, effect, attempts, executor, started_at, evidence
from views.unknown_calls
where tenant = $1 and (thread, turn, step, index) > ($2::text, $3::bigint, $4::bigint, $5::int)
order by thread, turn, step, index
limit 100

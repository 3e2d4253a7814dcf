-- Calls of a tenant that wait for a person. `$2` to `$5` are thread, turn, step and index of the last row of the previous
-- page; for the first page `''`, 0, 0, -1.
select thread, call, turn, step, index, tool, args, call_hash, reason, requested_at, expires_at
from views.approvals
where tenant = $1 and (thread, turn, step, index) > ($2::text, $3::bigint, $4::bigint, $5::int)
order by thread, turn, step, index
limit 100

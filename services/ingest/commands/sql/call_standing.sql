-- A tool call, with the record that settled it.
select
    c.call, c.tool, c.status, c.outcome, c.call_hash, c.attempts, c.decision, c.decided_by, c.decided_at,
    c.decision_reason, c.resolution, c.resolved_by, c.resolved_at, c.note, c.settled_at, c.result,
    e.id, e.type, e.data_hash, e."partition", e."offset", e.seq, e.effect, e.reason
from views.tool_calls as c
left join views.events as e on e.tenant = c.tenant and e.thread = c.thread and e.seq = c.settled_seq
where
    c.tenant = $1 and c.thread = $2 and c.turn = split_part($3, '.', 1)::bigint
    and c.step = split_part($3, '.', 2)::bigint and c.index = split_part($3, '.', 3)::int

-- A tool call, with the record that settled it, and when it was last resolved: the view has no time for `again`.
select
    c.call, c.tool, c.status, c.outcome, c.call_hash, c.attempts, c.decision, c.decided_by, c.decided_at,
    c.decision_reason, c.resolution, c.resolved_by, c.note, c.settled_at, c.result, r.time as resolved_at,
    e.id, e.type, e.data_hash, e."partition", e."offset", e.seq, e.effect, e.reason
from views.tool_calls as c
left join views.events as e on e.tenant = c.tenant and e.thread = c.thread and e.seq = c.settled_seq
left join lateral (
    select resolved.time
    from views.events as resolved
    where
        c.resolution is not null and resolved.tenant = c.tenant and resolved.thread = c.thread
        and resolved.seq > c.proposed_seq and resolved.type = 'tool_call.resolved' and resolved.effect = 'applied'
        and resolved.data ->> 'call' = c.call
    order by resolved.seq desc
    limit 1
) as r on true
where c.tenant = $1 and c.thread = $2 and c.call = $3

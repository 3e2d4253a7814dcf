select
    thread, status, title, labels, archived, created_at, updated_at, seq, turn, last_turn, last_outcome, queued,
    waiting_calls, unknown_calls, parent_seq, parent_call, parent_plan_version, parent_task, depth
from views.threads
where tenant = $1 and parent = $2 and lineage_kind = 'child' and thread > $3
order by thread
limit $4

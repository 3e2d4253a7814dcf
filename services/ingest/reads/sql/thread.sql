select
    thread, status, title, labels, archived, created_at, updated_at, seq, turn, last_turn, last_outcome, queued,
    waiting_calls, unknown_calls, config, config_seq, lineage_kind, parent, parent_seq, parent_call,
    parent_plan_version, parent_task, depth, plan_version
from views.threads
where tenant = $1 and thread = $2

-- The forks and children of a thread.
select thread, lineage_kind, parent_seq, parent_call, parent_task, depth, status, last_outcome
from views.threads
where tenant = $1 and parent = $2 and thread > $3
order by thread
limit 100

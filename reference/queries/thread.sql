-- One thread.
select status, title, labels, seq, turn, last_turn, last_outcome, queued, waiting_calls, unknown_calls, updated_at
from views.threads
where tenant = $1 and thread = $2

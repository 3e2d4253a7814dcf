-- A tenant's threads with an open turn: they work, or wait for somebody.
select thread, turn, status, started_at, steps
from views.turns
where tenant = $1 and status <> 'ended' and thread > $2
order by thread
limit 100

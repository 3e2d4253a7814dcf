-- A thread's records after a cursor, with their effects.
select seq, type, time, actor, effect, reason, data
from views.events
where tenant = $1 and thread = $2 and seq > $3
order by seq
limit 100

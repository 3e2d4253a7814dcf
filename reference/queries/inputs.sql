-- The inputs of a thread, and the turn and step that took each.
select seq, input, content, turn, step, dropped
from views.items
where tenant = $1 and thread = $2 and input is not null and seq > $3
order by seq
limit 100

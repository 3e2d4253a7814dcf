select id, type, seq, effect, reason, "partition", "offset"
from views.events
where tenant = $1 and thread = $2 and id = $3 and actor like 'user:%'
order by seq
limit 1

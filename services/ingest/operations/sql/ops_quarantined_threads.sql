-- Threads that the projector has set aside, and when it last updated their views.
select s.tenant, s.thread, s.quarantined, t.updated_at
from views.thread_states s
left join views.threads t on t.tenant = s.tenant and t.thread = s.thread
where s.quarantined is not null and s.topic = $1
order by s.tenant, s.thread
limit $2

-- Active threads of which no record has taken effect since $2, in order of their key, after ($3, $4).
select s.tenant, s.thread, s.fold_version, s.state::text as state
from views.thread_states s
join views.threads t on t.tenant = s.tenant and t.thread = s.thread
where s.active and s.topic = $1 and s.quarantined is null and t.updated_at < $2
    and (s.tenant, s.thread) > ($3, $4)
order by s.tenant, s.thread
limit $5

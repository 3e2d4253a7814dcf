-- Active threads of which no record has taken effect since $2, in order of their key, after ($3, $4). Each is looked up:
-- there are few of them beside those that rest.
select s.tenant, s.thread, s.fold_version, s.state::text as state
from (
    select tenant, thread, fold_version, state
    from views.thread_states
    where active and topic = $1 and quarantined is null and (tenant, thread) > ($3, $4)
    order by tenant, thread
) as s
join lateral (
    select updated_at
    from views.threads
    where tenant = s.tenant and thread = s.thread
    limit 1
) as t on t.updated_at < $2
order by s.tenant, s.thread
limit $5

-- The last version of a thread's plan, as the folded state has it: it goes on where the rows of a thread do not. And the
-- version that a command with this id proposed before.
select
    coalesce((s.state -> 'plan' ->> 'last_version')::bigint, 0) as last_version,
    (
        select (e.data ->> 'plan_version')::bigint
        from views.events as e
        where e.tenant = $1 and e.thread = $2 and e.id = $3 and e.actor like 'user:%'
        order by e.seq
        limit 1
    ) as proposed
from views.thread_states as s
where s.tenant = $1 and s.thread = $2

-- Plans of a tenant that wait for an answer.
select thread, version, tasks, proposed_at, proposed_by
from views.plans
where tenant = $1 and status = 'waiting' and (thread, version) > ($2::text, $3::bigint)
order by thread, version
limit 100

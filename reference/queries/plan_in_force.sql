-- The tasks of a thread's plan in force, with their current status.
select k.place, k.task, k.title, k.depends_on, k.status, k.child, k.started_at, k.ended_at
from views.threads t
join views.tasks k on k.tenant = t.tenant and k.thread = t.thread and k.version = t.plan_version
where t.tenant = $1 and t.thread = $2
order by k.place

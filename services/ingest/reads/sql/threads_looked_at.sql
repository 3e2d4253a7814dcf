-- The last of the threads that one page looked at; no row if the list ends before it.
select thread, created_at
from views.threads
where tenant = $1 and (created_at, thread) < ($2::timestamptz, $3::text)
order by created_at desc, thread desc
offset $4
limit 1

-- The last of the next so many threads, where there are so many.
select thread, created_at
from views.threads
where tenant = $1 and (created_at, thread) < ($2::timestamptz, $3::text)
order by created_at desc, thread desc
offset $4::int - 1
limit 1

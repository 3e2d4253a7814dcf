-- A tenant's threads, the newest first: `$2` and `$3` are `created_at` and `thread` of the last one of the page before,
-- and `'infinity'` and `''` for the first page.
select thread, status, title, labels, created_at, updated_at, last_outcome
from views.threads
where tenant = $1 and (created_at, thread) < ($2::timestamptz, $3::text)
order by created_at desc, thread desc
limit 100

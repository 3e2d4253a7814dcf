-- A tenant's threads, newest first. `$2` and `$3` are `created_at` and `thread` of the last row of the previous page; for
-- the first page `'infinity'` and `''`.
select thread, status, title, labels, created_at, updated_at, last_outcome
from views.threads
where tenant = $1 and (created_at, thread) < ($2::timestamptz, $3::text)
order by created_at desc, thread desc
limit 100

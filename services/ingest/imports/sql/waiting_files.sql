-- Files of earlier imports that lacked one of these sessions.
select import::text as import, number, path, sha256, size
from ingest.import_files
where tenant = $1 and waits_for = any($2::text[]) and import <> $3::uuid
order by import, number
limit $4

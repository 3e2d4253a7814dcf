-- The import and its files, or nothing where it is there already.
with made as (
    insert into ingest.imports (id, tenant, tool, subject, request_sha256, files)
    values ($1, $2, $3, $4, $5, $6)
    on conflict (id) do nothing
    returning id, tenant
)
insert into ingest.import_files (import, number, tenant, path, sha256, size, companion)
select made.id, f.number, made.tenant, f.path, f.sha256, f.size, f.companion
from made, unnest($7::int[], $8::text[], $9::text[], $10::bigint[], $11::boolean[])
    as f (number, path, sha256, size, companion)
returning number

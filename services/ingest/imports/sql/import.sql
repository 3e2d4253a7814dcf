-- An import, with how many of its files are done.
select i.id::text as id, i.tool, i.status, i.files, i.problem, i.created_at, i.finished_at,
    (
        select count(*) from ingest.import_files f
        where f.tenant = i.tenant and f.import = i.id and not f.companion and f.report is not null
    ) as done
from ingest.imports i
where i.tenant = $1 and i.id = $2

-- Write a file's report if this worker still has the import ($7). The file may belong to an earlier import that waited for
-- this one.
update ingest.import_files f
set report = $4, outcome = $5, waits_for = $6
where f.tenant = $1 and f.import = $2::uuid and f.number = $3
    and exists (select from ingest.imports i where i.id = $7::uuid and i.worker = $8 and i.status = 'running')
returning f.number

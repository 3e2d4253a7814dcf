-- Give an import back with its new status. With `waiting`, any worker may take it again at once.
update ingest.imports
set status = $3, problem = $4, finished_at = case when $3 = 'waiting' then null else now() end,
    lease_until = now()
where id = $1::uuid and worker = $2 and status = 'running'
returning id

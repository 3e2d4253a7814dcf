update ingest.imports
set lease_until = now() + make_interval(secs => $3)
where id = $1::uuid and worker = $2 and status = 'running'
returning id

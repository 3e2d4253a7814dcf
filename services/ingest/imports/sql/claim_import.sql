-- The oldest import that nobody works on, of a tenant of which nobody works on another.
update ingest.imports
set status = 'running', worker = $1, lease_until = now() + make_interval(secs => $2), tries = tries + 1
where id = (
    select i.id
    from ingest.imports i
    where (i.status = 'waiting' or (i.status = 'running' and i.lease_until < now()))
        and not exists (
            select from ingest.imports o
            where o.tenant = i.tenant and o.id <> i.id and o.status = 'running' and o.lease_until >= now()
        )
    order by i.created_at
    limit 1
    for update skip locked
)
returning id::text as id, tenant, tool, tries

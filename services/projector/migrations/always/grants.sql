-- Runs with every migration: who may do what with the list of generations, and who may make one.
grant usage on schema threadlog, views
    to threadlog_projector, threadlog_runtime, threadlog_executor, threadlog_ingest, threadlog_reader, threadlog_operator,
    threadlog_rollups;
grant select on threadlog.migrations
    to threadlog_projector, threadlog_runtime, threadlog_executor, threadlog_ingest, threadlog_rollups;
grant select, insert, update, delete on threadlog.generations, threadlog.relay_positions to threadlog_projector;
grant select on views.generation
    to threadlog_projector, threadlog_runtime, threadlog_executor, threadlog_ingest, threadlog_reader, threadlog_operator;
grant create on schema views to threadlog_projector;

-- The projector owns what it has to re-point and to drop, also where somebody else made it before there were roles.
do $$
declare
    owned record;
begin
    execute format('grant create on database %I to threadlog_projector', current_database());
    for owned in
        select nspname from pg_namespace where nspname ~ '^views_g[0-9]+$' and nspowner <> 'threadlog_projector'::regrole
    loop
        execute format('alter schema %I owner to threadlog_projector', owned.nspname);
    end loop;
    for owned in
        select c.oid::regclass as name, c.relkind
        from pg_class as c
        join pg_namespace as n on n.oid = c.relnamespace
        where (n.nspname ~ '^views_g[0-9]+$' or (n.nspname = 'views' and c.relname <> 'generation'))
            and c.relkind in ('r', 'v') and c.relowner <> 'threadlog_projector'::regrole
    loop
        execute format(
            'alter %s %s owner to threadlog_projector', case owned.relkind when 'r' then 'table' else 'view' end, owned.name
        );
    end loop;
end
$$;

-- Tables of tenants outside the generations: counts by tenant and minute, which the rollups write and operators read.
do $$
declare
    relation regclass;
begin
    for relation in
        select c.oid::regclass
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
        where c.relnamespace = 'threadlog'::regnamespace and c.relkind in ('r', 'p') and not c.relforcerowsecurity
        order by c.relname
    loop
        execute format('alter table %s enable row level security', relation);
        execute format('alter table %s force row level security', relation);
        execute format('create policy of_all_tenants on %s for select to threadlog_operator using (true)', relation);
        execute format('create policy of_the_rollups on %s to threadlog_rollups using (true) with check (true)', relation);
        execute format('grant select on %s to threadlog_operator', relation);
        execute format('grant select, insert, update, delete on %s to threadlog_rollups', relation);
    end loop;
end
$$;

-- Runs with every migration: who may do what with the list of generations, and who may make one.
grant usage on schema threadlog, views
    to threadlog_projector, threadlog_runtime, threadlog_executor, threadlog_ingest, threadlog_reader, threadlog_operator,
    threadlog_rollups;
grant select on threadlog.migrations, threadlog.logs
    to threadlog_projector, threadlog_runtime, threadlog_executor, threadlog_ingest, threadlog_rollups;
grant select, insert, update, delete on threadlog.generations, threadlog.relay_positions to threadlog_projector;
grant insert, update on threadlog.logs to threadlog_projector;
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

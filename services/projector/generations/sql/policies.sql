-- Who may read what of a generation: its schema comes first on the search path. Every table with a column `tenant` is
-- bound by policies, its owner included; tables without one hold nothing of any tenant. The views check the rights of
-- who reads them. Only the projector writes: it owns all of this, and its role passes the policies by.
do $$
declare
    relation record;
begin
    for relation in
        select c.oid::regclass as name, c.relkind, a.attname is not null as is_of_tenants
        from pg_class as c
        left join pg_attribute as a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
        where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
        order by c.relname
    loop
        if relation.relkind = 'm' then
            raise exception '% is a materialized view, which no policy binds', relation.name;
        end if;
        execute format('grant select on %s to threadlog_reader, threadlog_operator', relation.name);
        if relation.relkind = 'v' then
            execute format('alter view %s set (security_invoker = true)', relation.name);
        elsif relation.is_of_tenants then
            execute format('alter table %s enable row level security', relation.name);
            execute format('alter table %s force row level security', relation.name);
            execute format(
                'create policy of_its_tenant on %s for select to threadlog_reader
                 using (tenant = current_setting(''app.tenant_id'', true))',
                relation.name
            );
            execute format('create policy of_all_tenants on %s for select to threadlog_operator using (true)', relation.name);
        else
            execute format('grant select on %s to threadlog_ingest', relation.name);
        end if;
    end loop;
    execute format(
        'grant usage on schema %I to threadlog_reader, threadlog_operator, threadlog_ingest, threadlog_runtime, threadlog_executor',
        current_schema()
    );
end
$$;

-- What the services read that act for every tenant: where a partition's states stand, what the model is shown, of forks
-- too, and how child threads ended.
grant select on thread_states, positions, threads, items, turns, steps to threadlog_runtime;
grant select on thread_states, positions to threadlog_executor;
create policy of_the_runtime on thread_states for select to threadlog_runtime using (true);
create policy of_the_runtime on threads for select to threadlog_runtime using (true);
create policy of_the_runtime on items for select to threadlog_runtime using (true);
create policy of_the_runtime on turns for select to threadlog_runtime using (true);
create policy of_the_runtime on steps for select to threadlog_runtime using (true);
create policy of_the_executor on thread_states for select to threadlog_executor using (true);

-- Runs with every migration: a tenant's reader sees its own imports; the service itself works on all of them.
do $$
declare
    name text;
begin
    foreach name in array array['imports', 'import_files'] loop
        if not (select relforcerowsecurity from pg_class where oid = ('ingest.' || name)::regclass) then
            execute format('alter table ingest.%I enable row level security', name);
            execute format('alter table ingest.%I force row level security', name);
            execute format(
                'create policy of_the_tenant on ingest.%I for select to threadlog_reader '
                'using (tenant = current_setting(''app.tenant_id'', true))', name);
            execute format('create policy of_operators on ingest.%I for select to threadlog_operator using (true)', name);
            execute format(
                'create policy of_who_works_on_them on ingest.%I to threadlog_ingest using (true) with check (true)',
                name);
        end if;
    end loop;
end
$$;

grant usage on schema ingest to threadlog_reader, threadlog_operator;
grant select on ingest.imports, ingest.import_files to threadlog_reader, threadlog_operator;
grant select, insert, update on ingest.imports, ingest.import_files to threadlog_ingest;

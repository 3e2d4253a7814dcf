-- Runs with every migration: who may look keys up, and who may make and revoke them.
do $$
begin
    if not (select relforcerowsecurity from pg_class where oid = 'ingest.api_keys'::regclass) then
        alter table ingest.api_keys enable row level security;
        alter table ingest.api_keys force row level security;
        create policy of_whoever_knocks on ingest.api_keys for select to threadlog_ingest using (true);
        create policy of_who_makes_them on ingest.api_keys to threadlog_keys using (true) with check (true);
    end if;
end
$$;

grant usage on schema ingest to threadlog_ingest, threadlog_keys;
grant select on ingest.api_keys to threadlog_ingest;
grant select (id, tenant, subject, scopes, created_at, revoked_at), insert, update (revoked_at) on ingest.api_keys to threadlog_keys;

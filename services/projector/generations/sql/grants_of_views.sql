-- Who may read the stable views, once they point at the live generation. What comes of it is up to that generation's
-- own grants and policies, since the views check the rights of who reads them.
do $$
declare
    relation record;
begin
    for relation in
        select c.oid::regclass as name
        from pg_class as c
        where c.relnamespace = 'views'::regnamespace and c.relkind = 'v' and c.relowner = current_user::regrole
        order by c.relname
    loop
        execute format('grant select on %s to threadlog_reader, threadlog_operator', relation.name);
    end loop;
end
$$;

grant select on views.positions to threadlog_ingest;
grant select on views.thread_states, views.positions, views.threads, views.items, views.turns, views.steps
    to threadlog_runtime;
grant select on views.thread_states, views.positions to threadlog_executor;

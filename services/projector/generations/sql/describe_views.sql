-- The stable views say of themselves and of their columns what the live generation says: comments do not come with a view.
do $$
declare
    described record;
begin
    for described in
        select stable.relname as name, a.attname as attribute, d.description as about
        from pg_class as stable
        join pg_rewrite as w on w.ev_class = stable.oid
        join (
            select distinct objid, refobjid
            from pg_depend
            where classid = 'pg_rewrite'::regclass and refclassid = 'pg_class'::regclass
        ) as on_source on on_source.objid = w.oid and on_source.refobjid <> stable.oid
        join pg_description as d on d.objoid = on_source.refobjid and d.classoid = 'pg_class'::regclass
        left join pg_attribute as b on b.attrelid = on_source.refobjid and b.attnum = d.objsubid and b.attnum > 0
        left join pg_attribute as a on a.attrelid = stable.oid and a.attname = b.attname
        where stable.relnamespace = 'views'::regnamespace and stable.relkind = 'v' and stable.relname <> 'generation'
            and (d.objsubid = 0 or a.attnum is not null)
            and d.description is distinct from case d.objsubid
                when 0 then obj_description(stable.oid, 'pg_class')
                else col_description(stable.oid, a.attnum)
            end
    loop
        if described.attribute is null then
            execute format('comment on view views.%I is %L', described.name, described.about);
        else
            execute format('comment on column views.%I.%I is %L', described.name, described.attribute, described.about);
        end if;
    end loop;
end
$$;

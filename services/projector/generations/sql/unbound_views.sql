-- Stable views that do not ask for the rights of who reads them.
select c.oid::regclass::text as view
from pg_class as c
where c.relnamespace = 'views'::regnamespace and c.relkind = 'v' and c.relname <> 'generation'
    and not coalesce(c.reloptions @> array['security_invoker=true'], false)
order by c.relname

-- Schemas of generations whose tables no policy binds.
select n.nspname as schema
from pg_namespace as n
join pg_class as c on c.relnamespace = n.oid and c.relname = 'thread_states'
where n.nspname ~ '^views_g[0-9]+$' and not c.relforcerowsecurity
order by n.nspname

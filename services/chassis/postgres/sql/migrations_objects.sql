-- Which of these `schema.name` there are. Asks the catalog itself, for which no rights are needed.
select n.nspname || '.' || c.relname as name
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where n.nspname || '.' || c.relname = any ($1::text[])

-- Those of the tables and views, as `schema.name`, that exist. The catalog can be read without any rights.
select n.nspname || '.' || c.relname as name
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where n.nspname || '.' || c.relname = any ($1::text[])

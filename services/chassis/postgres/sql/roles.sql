select rolname, rolsuper, rolbypassrls
from pg_catalog.pg_roles
where rolname = any ($1::text[])
order by rolname

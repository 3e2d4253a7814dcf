-- The groups that these roles are members of, as group and member.
select held.rolname as held, holder.rolname as holder
from pg_catalog.pg_auth_members as m
join pg_catalog.pg_roles as held on held.oid = m.roleid
join pg_catalog.pg_roles as holder on holder.oid = m.member
where holder.rolname = any ($1::text[])
group by held.rolname, holder.rolname
order by held.rolname, holder.rolname

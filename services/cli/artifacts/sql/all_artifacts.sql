-- The next of the objects that records name, with one record of each.
select f.tenant, f.sha256, s.size, f.thread, f.seq
from (
    select distinct on (a.tenant, a.sha256) a.tenant, a.sha256, a.thread, a.seq
    from views.artifacts a
    where (a.tenant, a.sha256) > ($1, $2)
    order by a.tenant, a.sha256, a.thread, a.seq, a.part
    limit $3
) f
cross join lateral (
    select max(b.size) as size from views.artifacts b where b.tenant = f.tenant and b.sha256 = f.sha256
) s
order by f.tenant, f.sha256

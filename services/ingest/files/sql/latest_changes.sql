select p.path, l.seq, l.call, l.kind, l.sha256
from unnest($3::text[]) p(path)
cross join lateral (
    select a.seq, a.call, a.kind, a.sha256
    from views.artifacts a
    where a.tenant = $1 and a.thread = $2 and left(a.name, 200) = left(p.path, 200) and a.name = p.path
        and a.kind in ('before', 'after') and a.effect = 'applied'
    order by a.seq desc
    limit 2
) l

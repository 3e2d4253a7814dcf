-- With what each takes on disk; null where its schema is not there.
select
    g.number, g.fold_version, g.projection_version, g.cluster_id, g.topic, g.status, g.created_at, g.live_since,
    (
        select sum(pg_total_relation_size(c.oid))::bigint
        from pg_class c
        where c.relnamespace = to_regnamespace('views_g' || g.number) and c.relkind = 'r'
    ) as bytes
from threadlog.generations g
order by g.number

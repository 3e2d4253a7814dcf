insert into threadlog.window_cells as stored
    (tenant, minute, cluster_id, "partition", counted_to, waiting, unknown, counts)
select given.tenant, given.minute, $1, given."partition", given.counted_to, given.waiting, given.unknown, given.counts
from unnest($2::text[], $3::timestamptz[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::jsonb[])
    as given (tenant, minute, "partition", counted_to, waiting, unknown, counts)
on conflict (tenant, minute, cluster_id, "partition") do update
set counted_to = excluded.counted_to, waiting = excluded.waiting, unknown = excluded.unknown, counts = excluded.counts
where stored.counted_to < excluded.counted_to

select c.tenant, c.minute, c."partition", c.counted_to, c.waiting, c.unknown, c.counts
from unnest($2::text[], $3::timestamptz[], $4::int[]) as wanted (tenant, minute, "partition")
join threadlog.window_cells as c
    on c.tenant = wanted.tenant and c.minute = wanted.minute and c.cluster_id = $1 and c."partition" = wanted."partition"

insert into threadlog.relay_positions (topic, "partition", cluster_id, next_offset)
select $1, given."partition", $2, given.next_offset
from unnest($3::int[], $4::bigint[]) as given ("partition", next_offset)
on conflict (topic, "partition") do update
set cluster_id = excluded.cluster_id, next_offset = excluded.next_offset, updated_at = now()

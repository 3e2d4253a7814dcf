update threadlog.relay_positions as stored
set next_offset = given.next_offset, updated_at = now()
from unnest($3::int[], $4::bigint[]) as given ("partition", next_offset)
where stored.topic = $1 and stored.cluster_id = $2 and stored."partition" = given."partition"
    and stored.next_offset < given.next_offset

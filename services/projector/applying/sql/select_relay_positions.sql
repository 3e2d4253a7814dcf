select "partition", next_offset
from threadlog.relay_positions
where topic = $1 and cluster_id = $2 and "partition" = any ($3::int[])

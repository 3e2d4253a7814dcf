select "partition", next_offset, source_offset, watermark
from threadlog.window_positions
where cluster_id = $1 and "partition" = any ($2::int[])

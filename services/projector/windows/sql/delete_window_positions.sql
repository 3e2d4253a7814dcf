delete from threadlog.window_positions
where cluster_id = $1 and "partition" = any ($2::int[])

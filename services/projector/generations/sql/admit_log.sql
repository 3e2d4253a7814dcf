-- The number of partitions that is kept: the given one where there was none, or where the log is a new one.
insert into threadlog.logs as kept (cluster_id, topic, partitions)
values ($1, $2, $3)
on conflict (cluster_id, topic) do update
set partitions = case when $4 then excluded.partitions else kept.partitions end
returning partitions

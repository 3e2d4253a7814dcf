-- The number of partitions that the views' log had. No row if no views were built from this log.
select partitions
from threadlog.logs
where cluster_id = $1 and topic = $2

-- How many partitions the views' log had; no row where no views were built from it.
select partitions
from threadlog.logs
where cluster_id = $1 and topic = $2

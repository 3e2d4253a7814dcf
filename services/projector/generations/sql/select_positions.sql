select "partition", next_offset, owner, owner_epoch, cluster_id
from positions
where topic = $1
order by "partition"

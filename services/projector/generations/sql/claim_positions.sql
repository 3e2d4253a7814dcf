-- Takes partitions over: from now on a projector with an older epoch cannot write them.
insert into positions (topic, "partition", next_offset, owner, owner_epoch, cluster_id, updated_at)
select $1, wanted."partition", 0, $3, 1, $4, now()
from unnest($2::int[]) as wanted ("partition")
order by wanted."partition"
on conflict (topic, "partition") do update
set owner = excluded.owner, owner_epoch = positions.owner_epoch + 1, updated_at = excluded.updated_at
returning "partition", next_offset, owner_epoch, cluster_id, last_record

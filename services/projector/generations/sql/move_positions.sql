-- The fence: a partition that is not returned has another owner, or is not where its rows begin.
update positions p set next_offset = moved.to_offset, last_record = moved.last_record, updated_at = now()
from unnest($2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
    as moved ("partition", owner_epoch, from_offset, to_offset, last_record)
where p.topic = $1 and p."partition" = moved."partition"
    and p.owner_epoch = moved.owner_epoch and p.next_offset = moved.from_offset
returning p."partition"

-- Items with a place up to `through_seq`; of several summaries the first counts.
update items t set compacted_at = summed.compacted_at
from (
    select i.tenant, i.thread, i.seq, i.part, min(c.compacted_at) as compacted_at
    from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) as c (tenant, thread, through_seq, compacted_at)
    join items i on i.tenant = c.tenant and i.thread = c.thread
    where i.place <= c.through_seq and i.compacted_at is null
    group by i.tenant, i.thread, i.seq, i.part
) as summed
where t.tenant = summed.tenant and t.thread = summed.thread and t.seq = summed.seq and t.part = summed.part

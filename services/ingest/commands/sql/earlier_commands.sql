-- The first record with each of these ids, and whether the thread has any record below the view's position.
select
    coalesce(p.next_offset, 0) as next_offset,
    exists (select from views.thread_states where tenant = $1 and thread = $2) as has_row,
    found.id,
    found.type,
    found.data_hash,
    found."partition",
    found."offset",
    found.seq,
    found.effect,
    found.reason
from (select $3::text as topic, $4::int as "partition") as asked
left join views.positions as p on p.topic = asked.topic and p."partition" = asked."partition"
left join (
    select distinct on (id) id, type, data_hash, "partition", "offset", seq, effect, reason
    from views.events
    where tenant = $1 and thread = $2 and id = any ($5::uuid[]) and actor like 'user:%'
    order by id, seq
) as found on true

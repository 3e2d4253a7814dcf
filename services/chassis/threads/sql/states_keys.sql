-- The stored position of a partition and the keys of its threads that have a row, one more than the limit at most, in
-- one snapshot. No row where no generation is live; one with null keys where there are none.
select p.next_offset, s.tenant, s.thread
from views.positions p
left join (
    select t.topic, t."partition", t.tenant, t.thread
    from views.thread_states t
    where t.topic = $1 and t."partition" = $2
    limit $3 + 1
) s on s.topic = p.topic
where p.topic = $1 and p."partition" = $2

-- The stored position of a partition and the keys of its threads that have a row, in one snapshot. At most one key more
-- than the limit. No row if no generation is live; one row with null keys if there are no threads.
select p.next_offset, s.tenant, s.thread
from views.positions p
left join (
    select t.topic, t."partition", t.tenant, t.thread
    from views.thread_states t
    where t.topic = $1 and t."partition" = $2
    limit $3 + 1
) s on s.topic = p.topic
where p.topic = $1 and p."partition" = $2

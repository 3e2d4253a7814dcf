-- The stored position of a partition and the states of its active threads, in one snapshot.
-- No row if no generation is live; one row with a null state if no thread is active.
select g.fold_version, p.next_offset, s.tenant, s.thread, s.state::text as state
from views.generation g
left join views.positions p on p.topic = $1 and p."partition" = $2
left join views.thread_states s on s.topic = $1 and s."partition" = $2 and s.active and s.fold_version = g.fold_version

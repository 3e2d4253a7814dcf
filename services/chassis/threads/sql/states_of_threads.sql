-- The stored position of a partition and the states of the given threads, in one snapshot.
-- No row if no generation is live; one row with a null state if none of the threads has a row.
select g.fold_version, p.next_offset, s.tenant, s.thread, s.state::text as state
from views.generation g
left join views.positions p on p.topic = $1 and p."partition" = $2
left join (
    unnest($3::text[], $4::text[]) as wanted (tenant, thread)
    join views.thread_states s using (tenant, thread)
) on s.topic = $1 and s.fold_version = g.fold_version

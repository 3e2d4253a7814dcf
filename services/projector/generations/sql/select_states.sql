-- The states of those of the given threads that have one.
select s.tenant, s.thread, s.fold_version, s.quarantined, s.state::text as state
from unnest($1::text[], $2::text[]) as wanted (tenant, thread)
join thread_states s on s.tenant = wanted.tenant and s.thread = wanted.thread

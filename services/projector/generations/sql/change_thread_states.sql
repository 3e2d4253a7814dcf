-- States at the end of a batch.
update thread_states t set
    "offset" = c."offset",
    fold_version = c.fold_version,
    active = c.active,
    quarantined = c.quarantined,
    state = c.state
from unnest(
    $1::text[], $2::text[], $3::bigint[], $4::int[], $5::boolean[], $6::text[], $7::json[]
) as c (
    tenant, thread, "offset", fold_version, active, quarantined, state
)
where t.tenant = c.tenant and t.thread = c.thread

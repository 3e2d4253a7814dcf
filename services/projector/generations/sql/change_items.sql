-- Null leaves a column as it is.
update items t set
    turn = coalesce(c.turn, t.turn),
    step = coalesce(c.step, t.step),
    place = coalesce(c.place, t.place),
    dropped = coalesce(c.dropped, t.dropped)
from unnest(
    $1::text[], $2::text[], $3::bigint[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[]
) as c (
    tenant, thread, seq, part, turn, step, place, dropped
)
where t.tenant = c.tenant and t.thread = c.thread and t.seq = c.seq and t.part = c.part

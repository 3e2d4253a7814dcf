-- The rows of a partition from $3 up to $4, and up to where this generation is. Its schema comes first on the search
-- path. Without rows there is one of nulls, which has that position.
with at as (
    select least(p.next_offset, $4::bigint) as to_offset
    from positions as p
    where p.topic = $1 and p."partition" = $2
)
select at.to_offset, e.tenant, e.thread, e.seq, e."partition", e."offset", e.id::text as id, e.type, e.time, e.effect,
    e.reason, e.facts
from at
left join events as e on e."partition" = $2 and e."offset" >= $3 and e."offset" < at.to_offset
order by e."offset"

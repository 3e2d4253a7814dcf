-- A thread's record at a position, with its effect. The newest ones are looked at first, because somebody waits for
-- it, and none before it.
select seq, id::text as id, type, (extract(epoch from time) * 1000)::bigint as time_ms, actor, cause, effect, reason,
    "partition", "offset", data::text as data
from (
    select *
    from views.events
    where tenant = $1 and thread = $2 and "offset" <= $4
    order by seq desc
    limit 1
) as last
where "partition" = $3 and "offset" = $4

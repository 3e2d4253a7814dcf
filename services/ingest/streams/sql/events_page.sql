-- A thread's records between two cursors, in order: at most $6 of them, and no more once they take $7 bytes as stored.
-- `found` is how many the first limit alone would give.
select seq, id, type, time_ms, actor, cause, effect, reason, "partition", "offset", data::text as data, found
from (
    select *,
        count(*) over () as found,
        sum(bytes) over (order by seq rows between unbounded preceding and 1 preceding) as bytes_before
    from (
        select seq, id::text as id, type, (extract(epoch from time) * 1000)::bigint as time_ms, actor, cause, effect,
            reason, "partition", "offset", data, pg_column_size(data) as bytes
        from views.events
        where tenant = $1 and thread = $2 and seq > $3 and seq <= $4 and (effect = 'applied' or not $5::boolean)
        order by seq
        limit $6
    ) as first
) as measured
where coalesce(bytes_before, 0) < $7::bigint
order by seq

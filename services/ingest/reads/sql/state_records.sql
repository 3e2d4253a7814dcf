-- A thread's records between two cursors, in order, with all that the fold needs of them: at most $5 of them, and no
-- more once they take $6 bytes as stored.
select seq, id, type, time_ms, actor, source, cause, data_hash, chain, effect, reason, "partition", "offset",
    data::text as data
from (
    select *, sum(bytes) over (order by seq rows between unbounded preceding and 1 preceding) as bytes_before
    from (
        select seq, id::text as id, type, (extract(epoch from time) * 1000)::bigint as time_ms, actor, source, cause,
            data_hash, chain, effect, reason, "partition", "offset", data, pg_column_size(data) as bytes
        from views.events
        where tenant = $1 and thread = $2 and seq > $3 and seq <= $4
        order by seq
        limit $5
    ) as first
) as measured
where coalesce(bytes_before, 0) < $6::bigint
order by seq

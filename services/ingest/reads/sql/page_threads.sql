-- The threads that pass the filter among the next so many. The number is limited, because matches may be rare.
select
    thread, status, title, labels, archived, created_at, updated_at, seq, turn, last_turn, last_outcome, queued,
    waiting_calls, unknown_calls
from (
    select
        thread, status, title, labels, archived, created_at, updated_at, seq, turn, last_turn, last_outcome, queued,
        waiting_calls, unknown_calls
    from views.threads
    where tenant = $1 and (created_at, thread) < ($2::timestamptz, $3::text)
    order by created_at desc, thread desc
    limit $8
) as looked_at
where
    ($4::boolean is null or archived = $4)
    and ($5::text is null or status = $5)
    and ($6::timestamptz is null or updated_at > $6)
    and ($7::jsonb is null or labels @> $7)
order by created_at desc, thread desc
limit $9

-- The items that the model sees of a thread: the summary in force, if there is one, and what the summary does not cover.
-- For a fork, inherited items are missing: ask the same of its parent, as of the seq of the fork.
with standing as (
    select coalesce(max(through_seq), 0) as through_seq
    from (
        select (content ->> 'through_seq')::bigint as through_seq
        from views.items
        where tenant = $1 and thread = $2 and kind = 'summary' and rewound_at is null
        order by seq desc
        limit 1
    ) as summary
)
select kind, turn, step, content
from (
    select seq, part, kind, turn, step, place, content
    from views.items
    where tenant = $1 and thread = $2 and seq > (select through_seq from standing)
        and input is null and place is not null and rewound_at is null and compacted_at is null
    union all
    select seq, part, kind, turn, step, place, content
    from views.items
    where tenant = $1 and thread = $2 and place > (select through_seq from standing)
        and input is not null and dropped is null and rewound_at is null and compacted_at is null
) as shown
order by kind <> 'summary', place, seq, part

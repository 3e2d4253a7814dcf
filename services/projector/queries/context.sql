-- What the model sees of a thread: the summary in force, if there is one, and what came after what it stands for.
with summary as (
    select (content ->> 'through_seq')::bigint as through_seq
    from views.items
    where tenant = $1 and thread = $2 and kind = 'summary' and rewound_at is null
    order by seq desc
    limit 1
), start as (
    select coalesce((select through_seq from summary), 0) as seq
)
select kind, turn, step, content
from (
    select i.seq, i.part, i.kind, i.turn, i.step, i.place, i.content, i.rewound_at, i.compacted_at
    from start, views.items i
    where i.tenant = $1 and i.thread = $2 and i.seq > start.seq
    union all
    select i.seq, i.part, i.kind, i.turn, i.step, i.place, i.content, i.rewound_at, i.compacted_at
    from start, views.items i -- inputs that came before, and were taken after
    where i.tenant = $1 and i.thread = $2 and i.input is not null and i.dropped is null
        and i.place > start.seq and i.seq <= start.seq
) as shown
where place is not null and rewound_at is null and compacted_at is null
order by kind <> 'summary', place, seq, part

-- The stored state of a thread (in the first row alone) and, where that is what is asked for ($3 is null, or its seq),
-- what a model is shown of it: one statement, so one snapshot. No more items than $4, and no more once they take $5
-- bytes as stored; `shown` is how many there are, whatever the limits. Of a thread whose views stand still there are
-- none: it is folded anew.
with stored as (
    select tenant, thread, topic, "partition", "offset", fold_version, quarantined,
        (state ->> 'seq')::bigint as seq, state::text as state
    from views.thread_states
    where tenant = $1 and thread = $2
),
wanted as (
    select * from stored where quarantined is null and ($3::bigint is null or seq = $3)
),
summary as (
    select i.tenant, i.thread, i.seq, (i.content ->> 'through_seq')::bigint as through_seq
    from wanted w
    join views.items i on i.tenant = w.tenant and i.thread = w.thread
    where i.kind = 'summary' and i.rewound_at is null
    order by i.seq desc
    limit 1
),
standing as (
    select coalesce(max(through_seq), 0) as through_seq from summary
),
context as (
    select seq, part, kind, turn, step, place, content, digest, input, call
    from views.items
    where tenant = (select tenant from wanted) and thread = (select thread from wanted)
        and seq > (select through_seq from standing)
        and input is null and place is not null and rewound_at is null and compacted_at is null
    union all
    select seq, part, kind, turn, step, place, content, digest, input, call
    from views.items
    where tenant = (select tenant from wanted) and thread = (select thread from wanted)
        and place > (select through_seq from standing)
        and input is not null and dropped is null and rewound_at is null and compacted_at is null
),
measured as (
    select *,
        count(*) over () as shown,
        row_number() over (order by kind <> 'summary', place, seq, part) as number,
        coalesce(
            sum(pg_column_size(content)) over (
                order by kind <> 'summary', place, seq, part rows between unbounded preceding and 1 preceding
            ),
            0
        ) as bytes_before
    from context
)
select
    s.topic, s."partition", s."offset", s.fold_version, s.quarantined, s.seq,
    case when coalesce(m.number, 1) = 1 then s.state end as state,
    w.seq is not null as is_wanted,
    coalesce(m.shown, 0) as shown,
    m.seq as item_seq, m.part, m.kind, m.turn, m.step, m.place, m.content::text as content, m.digest, m.input, m.call
from stored s
left join wanted w on true
left join measured m on m.number <= $4 and m.bytes_before < $5::bigint
order by m.number

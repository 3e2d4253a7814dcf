-- The stored state of a thread and, where that is what is asked for ($3 is null, or its seq), what a model is shown of
-- it: one statement, so one snapshot. No more items than $4, and no more once they take $5 bytes as stored; `shown` is
-- how many there are, whatever the limits. Of a thread whose views stand still there are none: it is folded anew.
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
context as (
    select i.seq, i.part, i.kind, i.turn, i.step, i.place, i.content, i.digest, i.input, i.call
    from wanted w
    join views.items i on i.tenant = w.tenant and i.thread = w.thread
    left join summary on true
    where i.place > coalesce(summary.through_seq, 0)
        and i.rewound_at is null
        and (i.kind <> 'summary' or i.seq = summary.seq)
        and not (
            i.kind = 'tool_result'
            and exists (
                select from views.items c
                where c.tenant = i.tenant and c.thread = i.thread and c.call = i.call and c.kind = 'tool_call'
                    and c.place <= summary.through_seq
            )
        )
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
    s.topic, s."partition", s."offset", s.fold_version, s.quarantined, s.seq, s.state, w.seq is not null as is_wanted,
    coalesce(m.shown, 0) as shown,
    m.seq as item_seq, m.part, m.kind, m.turn, m.step, m.place, m.content::text as content, m.digest, m.input, m.call
from stored s
left join wanted w on true
left join measured m on m.number <= $4 and m.bytes_before < $5::bigint
order by m.number

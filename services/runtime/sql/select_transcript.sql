-- Items of a thread that its model still sees, or will see, and the seq up to which they are complete, in one snapshot: the
-- items after those that the summary in force replaces, inputs that were taken since then, and inputs that wait. A thread
-- without such items gives one row of nulls. A thread without a state row gives no row, nor does one whose items are out of
-- date because the database refused one of its records.
select
    (s.state ->> 'seq')::bigint as thread_seq,
    (s.state -> 'lineage')::text as lineage,
    i.seq, i.part, i.kind, i.turn, i.step, i.place, i.content, i.digest, i.input, i.call
from views.thread_states as s
left join lateral (
    select (summary.content ->> 'through_seq')::bigint as through_seq
    from views.items as summary
    where summary.tenant = s.tenant and summary.thread = s.thread
        and summary.kind = 'summary' and summary.rewound_at is null
    order by summary.seq desc
    limit 1
) as standing on true
left join lateral (
    select
        shown.seq, shown.part, shown.kind, shown.turn, shown.step, shown.place, shown.content, shown.digest,
        shown.input, shown.call
    from views.items as shown
    where shown.tenant = s.tenant and shown.thread = s.thread and shown.seq > coalesce(standing.through_seq, 0)
        and shown.input is null and shown.place is not null
        and shown.rewound_at is null and shown.compacted_at is null
    union all
    select
        taken.seq, taken.part, taken.kind, taken.turn, taken.step, taken.place, taken.content, taken.digest,
        taken.input, taken.call
    from views.items as taken
    where taken.tenant = s.tenant and taken.thread = s.thread and taken.place > coalesce(standing.through_seq, 0)
        and taken.input is not null and taken.dropped is null
        and taken.rewound_at is null and taken.compacted_at is null
    union all
    select
        waiting.seq, waiting.part, waiting.kind, waiting.turn, waiting.step, waiting.place, waiting.content,
        waiting.digest, waiting.input, waiting.call
    from views.items as waiting
    where waiting.tenant = s.tenant and waiting.thread = s.thread and waiting.place is null
        and waiting.input is not null and waiting.dropped is null
) as i on true
where s.tenant = $1 and s.thread = $2 and s.quarantined is null
order by i.seq, i.part

-- What the summaries stood for that a rewind has just taken out of the context: it comes back. What a summary before
-- them stands for does not, and is not looked at. A thread is in the arrays once.
update items t set compacted_at = null
from (
    with gone as (
        select
            s.tenant, s.thread, s.seq,
            coalesce((
                select max((earlier.content ->> 'through_seq')::bigint)
                from items earlier
                where earlier.tenant = s.tenant and earlier.thread = s.thread and earlier.seq < s.seq
                    and earlier.kind = 'summary' and earlier.rewound_at is null
            ), 0) as since
        from unnest($1::text[], $2::text[], $3::bigint[]) as r (tenant, thread, rewound_at)
        join items s on s.tenant = r.tenant and s.thread = r.thread and s.kind = 'summary' and s.rewound_at = r.rewound_at
    )
    select i.tenant, i.thread, i.seq, i.part
    from gone g
    join items i on i.tenant = g.tenant and i.thread = g.thread and i.seq > g.since and i.seq < g.seq
    where i.input is null and i.compacted_at = g.seq
    union all
    select i.tenant, i.thread, i.seq, i.part
    from gone g
    join items i on i.tenant = g.tenant and i.thread = g.thread and i.input is not null and i.dropped is null
        and i.place > g.since and i.place < g.seq
    where i.compacted_at = g.seq
) as back
where t.tenant = back.tenant and t.thread = back.thread and t.seq = back.seq and t.part = back.part

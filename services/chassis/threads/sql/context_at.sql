-- The items that a thread itself showed as of a seq ($3), in order, whatever became of them later, and where the thread
-- was forked from. At most $4 items, and none after they take $5 stored bytes; null means no limit. `shown` is the number
-- of items without the limits. One row of nulls if there are no items. No row if the views lack the thread up to that
-- seq, or if the thread is quarantined because the database refused a record of it.
select
    parent, parent_seq, summary_seq, shown, seq, part, kind, turn, step, place, content, digest, input, call
from (
    select
        standing.parent, standing.parent_seq, standing.summary_seq,
        i.seq, i.part, i.kind, i.turn, i.step, i.place, i.content, i.digest, i.input, i.call,
        count(i.seq) over () as shown,
        row_number() over placed as number,
        coalesce(
            sum(pg_column_size(i.content)) over (placed rows between unbounded preceding and 1 preceding), 0
        ) as bytes_before
    from (
        select
            s.tenant, s.thread, summary.seq as summary_seq, coalesce(summary.through_seq, 0) as through_seq,
            case when t.lineage_kind = 'fork' then t.parent end as parent, t.parent_seq
        from views.thread_states as s
        join views.threads as t on t.tenant = s.tenant and t.thread = s.thread
        left join lateral (
            select told.seq, (told.content ->> 'through_seq')::bigint as through_seq
            from views.items as told
            where told.tenant = s.tenant and told.thread = s.thread and told.kind = 'summary' and told.seq <= $3
                and (told.rewound_at is null or told.rewound_at > $3)
            order by told.seq desc
            limit 1
        ) as summary on true
        where s.tenant = $1 and s.thread = $2 and s.quarantined is null and (s.state ->> 'seq')::bigint >= $3
    ) as standing
    left join lateral (
        select
            shown.seq, shown.part, shown.kind, shown.turn, shown.step, shown.place, shown.content, shown.digest,
            shown.input, shown.call
        from views.items as shown
        where shown.tenant = standing.tenant and shown.thread = standing.thread
            and shown.seq > standing.through_seq and shown.seq <= $3
            and shown.input is null and shown.place is not null
            and (shown.rewound_at is null or shown.rewound_at > $3)
            and (shown.kind <> 'summary' or shown.seq = standing.summary_seq)
        union all
        select
            taken.seq, taken.part, taken.kind, taken.turn, taken.step, taken.place, taken.content, taken.digest,
            taken.input, taken.call
        from views.items as taken
        where taken.tenant = standing.tenant and taken.thread = standing.thread
            and taken.place > standing.through_seq and taken.place <= $3
            and taken.input is not null and taken.dropped is null
            and (taken.rewound_at is null or taken.rewound_at > $3)
    ) as i on true
    window placed as (order by i.kind <> 'summary', i.place, i.seq, i.part)
) as measured
where number <= coalesce($4::bigint, number) and bytes_before < coalesce($5::bigint, bytes_before + 1)
order by number

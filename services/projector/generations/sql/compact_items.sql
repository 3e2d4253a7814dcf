-- Items with a place up to `through_seq`, and results of calls that are among them. What an earlier summary in force
-- stands for is marked already, and not looked at. A thread is in the arrays once.
update items t set compacted_at = summed.compacted_at
from (
    with summaries as (
        select
            c.tenant, c.thread, c.through_seq, c.compacted_at,
            coalesce((
                select max((earlier.content ->> 'through_seq')::bigint)
                from items earlier
                where earlier.tenant = c.tenant and earlier.thread = c.thread and earlier.seq < c.compacted_at
                    and earlier.kind = 'summary' and earlier.rewound_at is null
            ), 0) as since
        from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) as c (tenant, thread, through_seq, compacted_at)
    )
    select i.tenant, i.thread, i.seq, i.part, s.compacted_at
    from summaries s
    join items i on i.tenant = s.tenant and i.thread = s.thread and i.seq > s.since and i.seq <= s.through_seq
    where i.input is null and i.place is not null and i.compacted_at is null
    union all
    select i.tenant, i.thread, i.seq, i.part, s.compacted_at
    from summaries s
    join items i on i.tenant = s.tenant and i.thread = s.thread and i.input is not null and i.dropped is null
        and i.place > s.since and i.place <= s.through_seq
    where i.compacted_at is null
    union all
    select i.tenant, i.thread, i.seq, i.part, s.compacted_at
    from summaries s
    join items i on i.tenant = s.tenant and i.thread = s.thread and i.seq > s.through_seq and i.seq < s.compacted_at
    where i.kind = 'tool_result' and i.place is not null and i.compacted_at is null
        and (
            select c.proposed_seq
            from tool_calls c
            where c.tenant = i.tenant and c.thread = i.thread and c.turn = i.turn and c.step = i.step
                and c.index = split_part(i.call, '.', 3)::int
        ) <= s.through_seq
) as summed
where t.tenant = summed.tenant and t.thread = summed.thread and t.seq = summed.seq and t.part = summed.part

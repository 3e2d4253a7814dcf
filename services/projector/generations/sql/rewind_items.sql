-- Items of turns after `to_turn` that had their place before the rewind: those of records since the first of these turns
-- began, and inputs that were taken since. A thread is in the arrays once.
update items t set rewound_at = hidden.rewound_at
from (
    with rewinds as (
        select r.tenant, r.thread, r.to_turn, r.rewound_at, first.started_seq
        from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) as r (tenant, thread, to_turn, rewound_at)
        cross join lateral (
            select t.started_seq
            from turns t
            where t.tenant = r.tenant and t.thread = r.thread and t.turn = r.to_turn + 1
            limit 1
        ) as first
    )
    select i.tenant, i.thread, i.seq, i.part, r.rewound_at
    from rewinds r
    join items i on i.tenant = r.tenant and i.thread = r.thread and i.seq >= r.started_seq and i.seq <= r.rewound_at
    where i.input is null and i.turn > r.to_turn and i.place is not null and i.rewound_at is null
    union all
    select i.tenant, i.thread, i.seq, i.part, r.rewound_at
    from rewinds r
    join items i on i.tenant = r.tenant and i.thread = r.thread and i.input is not null and i.dropped is null
        and i.place >= r.started_seq and i.place <= r.rewound_at
    where i.turn > r.to_turn and i.rewound_at is null
) as hidden
where t.tenant = hidden.tenant and t.thread = hidden.thread and t.seq = hidden.seq and t.part = hidden.part

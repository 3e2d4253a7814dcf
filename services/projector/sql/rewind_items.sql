-- Items of turns after `to_turn` that had their place before the rewind; of several rewinds the first counts.
update items t set rewound_at = hidden.rewound_at
from (
    select i.tenant, i.thread, i.seq, i.part, min(r.rewound_at) as rewound_at
    from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) as r (tenant, thread, to_turn, rewound_at)
    join items i on i.tenant = r.tenant and i.thread = r.thread
    where i.turn > r.to_turn and i.place <= r.rewound_at and i.rewound_at is null
    group by i.tenant, i.thread, i.seq, i.part
) as hidden
where t.tenant = hidden.tenant and t.thread = hidden.thread and t.seq = hidden.seq and t.part = hidden.part

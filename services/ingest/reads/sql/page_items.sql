select
    seq, part, kind, turn, step, place, content, digest, input, call, dropped, rewound_at, compacted_at
from views.items
where tenant = $1 and thread = $2 and (seq, part) > ($3::bigint, $4::bigint)
order by seq, part
limit $5

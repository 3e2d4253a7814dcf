-- Dead letters of all tenants, the newest first, before a place in that order.
select topic, "partition", "offset", tenant, thread, seq, fault, reason, at, key, headers,
    substring(value for $9) as value, value_bytes
from views.dead_letters
where (at, topic, "partition", "offset") < ($1, $2, $3, $4)
    and at >= $5
    and ($6::text is null or topic = $6)
    and ($7::int is null or "partition" = $7)
    and ($8::text is null or fault = $8)
order by at desc, topic desc, "partition" desc, "offset" desc
limit $10

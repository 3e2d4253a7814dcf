-- Every place where a tenant's threads name some content.
select thread, seq, part, kind, effect, call, name, at
from views.artifacts
where tenant = $1 and sha256 = $2 and (thread, seq, part) > ($3::text, $4::bigint, $5::int)
order by thread, seq, part
limit 100

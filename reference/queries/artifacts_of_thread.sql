-- The artifacts that a thread made or was given.
select seq, part, kind, effect, call, sha256, size, media_type, name, at
from views.artifacts
where tenant = $1 and thread = $2 and (seq, part) > ($3::bigint, $4::int)
order by seq, part
limit 100

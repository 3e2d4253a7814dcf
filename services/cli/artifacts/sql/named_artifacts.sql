select distinct sha256
from views.artifacts
where tenant = $1 and sha256 = any($2::text[])

select tenant, sha256, max(size) as size, max(thread) as thread, max(seq) as seq
from views.artifacts
where $1::text is null or tenant = $1
group by tenant, sha256

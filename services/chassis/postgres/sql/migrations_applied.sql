select number, name, sha256
from threadlog.migrations
where owner = $1
order by number

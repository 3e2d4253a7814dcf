select distinct sha256
from ingest.import_files
where tenant = $1 and sha256 = any($2::text[])

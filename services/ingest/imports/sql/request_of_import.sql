select request_sha256 from ingest.imports where tenant = $1 and id = $2

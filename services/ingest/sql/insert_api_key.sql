insert into ingest.api_keys (id, tenant, subject, scopes, secret_sha256) values ($1, $2, $3, $4, $5)

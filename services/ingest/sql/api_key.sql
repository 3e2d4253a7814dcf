select tenant, subject, scopes, secret_sha256, revoked_at is not null as revoked from ingest.api_keys where id = $1

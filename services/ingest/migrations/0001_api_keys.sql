-- API keys. Not a view: they are in no log, and survive every rebuild.
create schema if not exists ingest;

create table ingest.api_keys (
    id text primary key,
    tenant text not null,
    subject text not null,
    scopes text[] not null,
    secret_sha256 bytea not null,
    created_at timestamptz not null default now(),
    revoked_at timestamptz
);

comment on table ingest.api_keys is 'Keys of the HTTP API. A key reads tl_<id>_<secret>; the secret is nowhere.';

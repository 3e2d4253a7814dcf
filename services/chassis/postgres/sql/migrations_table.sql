create table if not exists threadlog.migrations (
    owner text not null,
    number int not null,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now(),
    primary key (owner, number)
)

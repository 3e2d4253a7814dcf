-- Jobs that import recorded sessions. Not views: what was asked for is in no log, and survives every rebuild.
create table ingest.imports (
    id uuid primary key,
    tenant text not null,
    tool text not null,
    subject text not null,
    request_sha256 text not null,
    created_at timestamptz not null default now(),
    status text not null default 'waiting',
    files int not null,
    worker text,
    lease_until timestamptz,
    tries int not null default 0,
    problem text,
    finished_at timestamptz
);

create index imports_unfinished on ingest.imports (created_at) where status in ('waiting', 'running');

create table ingest.import_files (
    import uuid not null references ingest.imports (id) on delete cascade,
    number int not null,
    tenant text not null,
    path text not null,
    sha256 text not null,
    size bigint not null,
    companion boolean not null,
    report jsonb,
    outcome jsonb,
    waits_for text,
    primary key (import, number)
);

create index import_files_waiting on ingest.import_files (tenant, waits_for) where waits_for is not null;

comment on table ingest.imports is 'Imports of recorded sessions: what was asked for, and how far it is.';
comment on table ingest.import_files is 'Their files, by reference to the artifact store, and what was found in each.';

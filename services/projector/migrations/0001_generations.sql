-- What is not a view: which generations of the views exist. `views` holds what readers read: it points at the live one.
create schema if not exists threadlog;

create schema if not exists views;

create table threadlog.generations (
    number int primary key generated always as identity,
    fold_version int not null,
    projection_version int not null,
    cluster_id text not null,
    topic text not null,
    status text not null check (status in ('building', 'live', 'old')),
    created_at timestamptz not null default now()
);

create unique index generations_live on threadlog.generations (status) where status = 'live';

comment on table threadlog.generations is 'Builds of the views, each in its own schema views_g<number>. One is live.';
comment on column threadlog.generations.number is 'Never used again, so that who still writes an old generation cannot meet a new one.';
comment on column threadlog.generations.fold_version is 'Of the fold that gave the records their meaning (schemas.state.FOLD_VERSION).';
comment on column threadlog.generations.projection_version is 'Of the code that wrote the rows.';
comment on column threadlog.generations.cluster_id is 'The Kafka cluster whose log was projected.';

create view views.generation as
select number, fold_version, projection_version, cluster_id, topic, created_at
from threadlog.generations
where status = 'live';

-- Live operations windows: what happened, per tenant and minute, counted from thread-effects. Not a view: it is kept
-- over rebuilds, and counted again from the topic where it is dropped.
create table threadlog.window_cells (
    tenant text not null,
    minute timestamptz not null,
    cluster_id text not null,
    "partition" int not null,
    counted_to bigint not null,
    waiting bigint not null,
    unknown bigint not null,
    counts jsonb not null,
    primary key (tenant, minute, cluster_id, "partition")
) with (fillfactor = 80);

-- For how many calls wait, or are unknown, at a moment: most minutes leave that as it was.
create index window_cells_standing on threadlog.window_cells (tenant, minute) include (waiting, unknown)
    where waiting <> 0 or unknown <> 0;
create index window_cells_minute on threadlog.window_cells (minute, tenant);

comment on table threadlog.window_cells is 'A row per tenant, minute in event time and source partition in which something countable happened. Absolute values: a replay writes the same row again.';
comment on column threadlog.window_cells.cluster_id is 'The Kafka cluster whose log was counted.';
comment on column threadlog.window_cells."partition" is 'Of thread-events.';
comment on column threadlog.window_cells.counted_to is 'Offset of the last record of that partition that is counted here: none up to it is counted again.';
comment on column threadlog.window_cells.waiting is 'By how many more, or fewer, calls wait for a person''s approval at the end of the minute than at its beginning. The sum over all minutes up to one is how many wait then.';
comment on column threadlog.window_cells.unknown is 'The same of unknown calls.';
comment on column threadlog.window_cells.counts is 'Counters by name; those of several cells are added. docs/effects.md lists them.';

create table threadlog.window_positions (
    "partition" int not null,
    cluster_id text not null,
    next_offset bigint not null,
    source_offset bigint not null,
    watermark timestamptz not null,
    updated_at timestamptz not null default now(),
    primary key ("partition", cluster_id)
);

comment on table threadlog.window_positions is 'Up to where each partition of thread-effects is counted. Moved in the transaction that writes the cells.';
comment on column threadlog.window_positions.next_offset is 'Of thread-effects.';
comment on column threadlog.window_positions.source_offset is 'Of thread-events: no effect of a record below is counted again.';
comment on column threadlog.window_positions.watermark is 'The latest event time so far. What comes with a time a day before it is late, and counted in no minute.';

-- How many partitions each log had when the views were first built from it: kept over rebuilds, and where all views are
-- dropped.
create table threadlog.logs (
    cluster_id text not null,
    topic text not null,
    partitions int not null check (partitions > 0),
    first_seen_at timestamptz not null default now(),
    primary key (cluster_id, topic)
);

comment on table threadlog.logs is 'The logs that views of this database were built from. A thread is in the partition that its key and their number come to, so the number stays what it was.';
comment on column threadlog.logs.cluster_id is 'The Kafka cluster.';
comment on column threadlog.logs.topic is 'thread-events.';
comment on column threadlog.logs.partitions is 'How many the topic has. `threadlog rebuild --new-log` takes another number.';
comment on column threadlog.logs.first_seen_at is 'When it was first connected to.';

-- Up to where the effects of each partition are published: outside the generations, because a rebuild publishes nothing.
create table threadlog.relay_positions (
    topic text not null,
    "partition" int not null,
    cluster_id text not null,
    next_offset bigint not null,
    updated_at timestamptz not null default now(),
    primary key (topic, "partition")
);

comment on table threadlog.relay_positions is 'Up to where the effects of each partition are on the topic thread-effects. Never ahead of it, and a moment behind. Without its row a partition goes on after the last effect that is on the topic.';
comment on column threadlog.relay_positions.topic is 'The source, thread-events.';
comment on column threadlog.relay_positions.cluster_id is 'The Kafka cluster of it. The position says nothing of another one.';
comment on column threadlog.relay_positions.next_offset is 'Effects of all records below are published.';

-- A scratch generation is filled to compare the live one with it, and dropped by whoever made it.
alter table threadlog.generations drop constraint generations_status_check;

alter table threadlog.generations
add constraint generations_status_check check (status in ('building', 'live', 'old', 'scratch'));

alter table threadlog.generations add column live_since timestamptz;

comment on column threadlog.generations.status is 'building: being filled, a rebuild goes on with it. live: what the views show. old: kept after a swap. scratch: to compare with, dropped afterwards.';
comment on column threadlog.generations.live_since is 'When it last became the live one.';

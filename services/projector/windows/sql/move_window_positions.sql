-- From where they were read, -1 for a partition without a position: whoever finds less than it asked for has been
-- overtaken. $3 is where each was, $4 where it is now.
with given as (
    select *
    from unnest($2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[])
        as given ("partition", from_offset, next_offset, source_offset, watermark)
), moved as (
    update threadlog.window_positions as stored
    set next_offset = given.next_offset, source_offset = given.source_offset, watermark = given.watermark,
        updated_at = now()
    from given
    where stored."partition" = given."partition" and stored.cluster_id = $1 and stored.next_offset = given.from_offset
    returning stored."partition"
), begun as (
    insert into threadlog.window_positions ("partition", cluster_id, next_offset, source_offset, watermark)
    select given."partition", $1, given.next_offset, given.source_offset, given.watermark
    from given
    where given.from_offset = -1
    on conflict do nothing
    returning "partition"
)
select "partition" from moved
union all
select "partition" from begun

-- Whether your own write is shown: `next_offset` is then above its offset.
select next_offset
from views.positions
where topic = 'thread-events' and "partition" = $1

-- How far a partition is shown. Your own write is shown once `next_offset` is above its offset.
select next_offset
from views.positions
where topic = 'thread-events' and "partition" = $1

select "partition", next_offset from views.positions where topic = $1

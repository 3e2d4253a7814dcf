-- Old ones, some at a time; not those on which it rests how many calls wait, or are unknown, today.
delete from threadlog.window_cells
where ctid = any (array(
    select ctid
    from threadlog.window_cells
    where minute < $1 and waiting = 0 and unknown = 0
    limit $2
))

select exists(
    select 1
    from views.dead_letters
    where tenant = $1 and fault in ('fold_failed', 'rows_failed', 'row_refused', 'row_too_large')
)

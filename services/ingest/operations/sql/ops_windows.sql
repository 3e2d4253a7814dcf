-- Steps of $3 minutes between $1 and $2 in which something happened, of a tenant or of all, after a step and a tenant,
-- $7 at most. How many calls wait at a step's end rests on all cells that ever changed it.
with page as (
    select date_bin(make_interval(mins => $3), minute, timestamptz 'epoch') as at, tenant
    from threadlog.window_cells
    where minute >= greatest($1::timestamptz, $5::timestamptz) and minute < $2::timestamptz
        and ($4::text is null or tenant = $4)
        and (date_bin(make_interval(mins => $3), minute, timestamptz 'epoch'), tenant) > ($5::timestamptz, $6::text)
    group by 1, 2
    order by 1, 2
    limit $7
)
select page.at, page.at + make_interval(mins => $3) as until, page.tenant, counted.counts, standing.waiting,
    standing.unknown
from page
cross join lateral (
    select jsonb_object_agg(summed.name, summed.value) as counts
    from (
        select c.key as name, sum(c.value::bigint) as value
        from threadlog.window_cells as cell
        cross join lateral jsonb_each_text(cell.counts) as c
        where cell.tenant = page.tenant and cell.minute >= page.at and cell.minute < page.at + make_interval(mins => $3)
        group by c.key
    ) as summed
) as counted
cross join lateral (
    select coalesce(sum(cell.waiting), 0)::bigint as waiting, coalesce(sum(cell.unknown), 0)::bigint as unknown
    from threadlog.window_cells as cell
    where cell.tenant = page.tenant and cell.minute < page.at + make_interval(mins => $3)
        and (cell.waiting <> 0 or cell.unknown <> 0)
) as standing
order by page.at, page.tenant

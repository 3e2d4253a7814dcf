-- Of a call that the folded state still holds, what the state says: it goes on where the rows of a thread do not, because
-- the database refused one of them. Of one that has left the state, its row.
select
    coalesce(standing.call ->> 'tool', c.tool) as tool,
    coalesce((standing.call ->> 'attempt')::bigint, c.attempts) as attempts,
    case when standing.call is null then c.pool else nullif(standing.call ->> 'pool', '') end as pool,
    case when standing.call is null then c.claim::text else standing.call ->> 'claim' end as claim
from (
    select s.tenant, s.thread, s.state -> 'calls' -> $3 as call
    from views.thread_states as s
    where s.tenant = $1 and s.thread = $2
) as standing
left join views.tool_calls as c
    on c.tenant = standing.tenant and c.thread = standing.thread and c.turn = split_part($3, '.', 1)::bigint
    and c.step = split_part($3, '.', 2)::bigint and c.index = split_part($3, '.', 3)::int
where standing.call is not null or c.call is not null

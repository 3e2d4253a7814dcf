-- Where a thread can be forked at or before what was asked for: a seq ($3), the end of a turn ($4), or where both are null
-- its newest record. A step that has not finished, and its calls until each is settled, are left out: what was settled
-- last is what came before that step. Also the chain there, and how many threads are above the thread by forks, counted
-- up to $5. Stage by stage, each of one row: so each condition is a value by then, which an index can look up.
with recursive stored as materialized (
    select
        s.quarantined, (s.state ->> 'seq')::bigint as newest, t.status, t.depth, t.config_seq, t.config,
        t.lineage_kind, t.parent
    from views.thread_states as s
    join views.threads as t on t.tenant = s.tenant and t.thread = s.thread
    where s.tenant = $1 and s.thread = $2
),
above as (
    select stored.parent, stored.lineage_kind, 0 as forks from stored
    union all
    select t.parent, t.lineage_kind, above.forks + 1
    from above
    join views.threads as t on t.tenant = $1 and t.thread = above.parent
    where above.lineage_kind = 'fork' and above.forks < $5
),
named as materialized (
    select ended_seq from views.turns where tenant = $1 and thread = $2 and turn = $4
),
asked as materialized (
    select coalesce($3::bigint, (select ended_seq from named), (select newest from stored)) as seq
),
last_turn as materialized (
    select turn, ended_seq
    from views.turns
    where tenant = $1 and thread = $2 and started_seq <= (select seq from asked)
    order by started_seq desc
    limit 1
),
open_turn as materialized (
    select turn from last_turn where ended_seq is null or ended_seq > (select seq from asked)
),
last_step as materialized (
    select step, started_seq, finished_seq
    from views.steps
    where tenant = $1 and thread = $2 and turn = (select turn from open_turn)
        and started_seq <= (select seq from asked)
    order by step desc
    limit 1
),
unsettled_calls as materialized (
    select count(*) as calls
    from views.tool_calls
    where tenant = $1 and thread = $2 and turn = (select turn from open_turn) and step = (select step from last_step)
        and (settled_seq is null or settled_seq > (select seq from asked))
),
settled as materialized (
    select coalesce(
        (
            select started_seq - 1
            from last_step
            where finished_seq is null or finished_seq > (select seq from asked)
                or (select calls from unsettled_calls) > 0
        ),
        (select seq from asked)
    ) as seq
)
select
    stored.newest, stored.quarantined, stored.status, stored.depth, stored.config_seq, stored.config,
    (select max(forks) from above) as forks,
    $4::bigint is null or exists (select from named) as is_there,
    (select seq from asked) as asked,
    (select turn from open_turn) as turn,
    (select seq from settled) as seq,
    (
        select chain
        from views.events
        where tenant = $1 and thread = $2 and seq = (select seq from settled)
    ) as chain
from stored

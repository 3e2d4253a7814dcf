-- Where a thread can be forked at or before what was asked for: a seq ($3), the end of a turn ($4), or where both are null
-- its newest record. A step that has not finished, and its calls until each is settled, are left out: what was settled
-- last is what came before that step. Also the chain there, and how many threads are above the thread by forks, counted
-- up to $5.
with recursive stored as (
    select
        s.tenant, s.thread, s.quarantined, (s.state ->> 'seq')::bigint as newest, t.status, t.depth, t.config_seq,
        t.config, t.lineage_kind, t.parent
    from views.thread_states as s
    join views.threads as t on t.tenant = s.tenant and t.thread = s.thread
    where s.tenant = $1 and s.thread = $2
),
above as (
    select stored.tenant, stored.parent, stored.lineage_kind, 0 as forks from stored
    union all
    select t.tenant, t.parent, t.lineage_kind, above.forks + 1
    from above
    join views.threads as t on t.tenant = above.tenant and t.thread = above.parent
    where above.lineage_kind = 'fork' and above.forks < $5
)
select
    stored.newest, stored.quarantined, stored.status, stored.depth, stored.config_seq, stored.config,
    (select max(forks) from above) as forks,
    asked.is_there, asked.seq as asked, open_turn.turn, step.step, settled.seq, record.chain
from stored
cross join lateral (
    select
        $4::bigint is null or exists (
            select from views.turns as named
            where named.tenant = stored.tenant and named.thread = stored.thread and named.turn = $4
        ) as is_there,
        coalesce(
            $3::bigint,
            (
                select named.ended_seq
                from views.turns as named
                where named.tenant = stored.tenant and named.thread = stored.thread and named.turn = $4
            ),
            stored.newest
        ) as seq
) as asked
left join lateral (
    select last.turn
    from (
        select t.turn, t.ended_seq
        from views.turns as t
        where t.tenant = stored.tenant and t.thread = stored.thread and t.started_seq <= asked.seq
        order by t.started_seq desc
        limit 1
    ) as last
    where last.ended_seq is null or last.ended_seq > asked.seq
) as open_turn on true
left join lateral (
    select last.step, last.started_seq
    from (
        select s.step, s.started_seq, s.finished_seq
        from views.steps as s
        where s.tenant = stored.tenant and s.thread = stored.thread and s.turn = open_turn.turn
            and s.started_seq <= asked.seq
        order by s.step desc
        limit 1
    ) as last
    where last.finished_seq is null or last.finished_seq > asked.seq or exists (
        select from views.tool_calls as c
        where c.tenant = stored.tenant and c.thread = stored.thread and c.turn = open_turn.turn and c.step = last.step
            and (c.settled_seq is null or c.settled_seq > asked.seq)
    )
) as step on true
cross join lateral (select coalesce(step.started_seq - 1, asked.seq) as seq) as settled
left join views.events as record
    on record.tenant = stored.tenant and record.thread = stored.thread and record.seq = settled.seq

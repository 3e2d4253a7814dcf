-- Versions of a thread's plan, the newest first. Tasks of one that came in force as they stand, else as proposed.
select
    p.version, p.status, p.call, p.proposed_seq, p.proposed_at, p.proposed_by, p.decided_seq, p.decided_at, p.decided_by,
    p.decision_reason, p.superseded_seq, p.superseded_at,
    coalesce(
        (
            select jsonb_agg(
                jsonb_build_object(
                    'task', t.task, 'title', t.title, 'instructions', t.instructions, 'depends_on', t.depends_on,
                    'left_out', t.left_out, 'status', t.status, 'child', t.child, 'result', t.result,
                    'changed_seq', t.changed_seq,
                    'started_at', to_char(t.started_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
                    'ended_at', to_char(t.ended_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
                )
                order by t.place
            )
            from views.tasks as t
            where t.tenant = p.tenant and t.thread = p.thread and t.version = p.version
        ),
        (
            select jsonb_agg(
                jsonb_build_object(
                    'task', proposed.task ->> 'id', 'title', proposed.task ->> 'title',
                    'instructions', proposed.task ->> 'instructions', 'depends_on', proposed.task -> 'depends_on',
                    'left_out', false, 'status', 'proposed', 'child', null, 'result', null, 'changed_seq', p.proposed_seq,
                    'started_at', null, 'ended_at', null
                )
                order by proposed.place
            )
            from jsonb_array_elements(p.tasks) with ordinality as proposed (task, place)
        ),
        '[]'::jsonb
    ) as tasks
from views.plans as p
where p.tenant = $1 and p.thread = $2 and p.version < $3::bigint
order by p.version desc
limit $4

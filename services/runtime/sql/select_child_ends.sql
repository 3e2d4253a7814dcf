-- Threads of a tenant that have ended the input that they were begun with. If `is_withdrawn`, no turn took the input: it
-- left the queue before, or reached a thread that was closing. Otherwise the turn that took it has ended, and `answer`
-- contains the texts of its last answer, in order.
select w.thread, (i.input is null or i.dropped is not null) as is_withdrawn, t.outcome, t.reason, last.answer
from unnest($2::text[], $3::text[]) as w (thread, input)
left join views.items as i on i.tenant = $1 and i.thread = w.thread and i.input = w.input
left join views.turns as t on t.tenant = $1 and t.thread = w.thread and t.turn = i.turn
left join views.steps as s on s.tenant = $1 and s.thread = w.thread and s.turn = t.turn and s.step = t.steps
left join lateral (
    select array_agg(m.content::text order by m.part) as answer
    from views.items as m
    where m.tenant = $1 and m.thread = w.thread and m.seq = s.finished_seq and m.kind = 'message'
) as last on true
where i.dropped is not null or t.status = 'ended'
    or (
        i.input is null
        and exists (
            select from views.threads as h
            where h.tenant = $1 and h.thread = w.thread and h.status in ('closing', 'closed')
        )
    )

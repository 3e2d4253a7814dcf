-- How much is open, of all tenants. By indexes of what is active and of what waits for people: nothing that is over is
-- looked at.
select
    (
        select count(*)
        from views.thread_states s
        join views.threads t on t.tenant = s.tenant and t.thread = s.thread
        where s.active and s.topic = $1 and t.turn is not null
    ) as open_turns,
    (select count(*) from views.approvals) as waiting_approvals,
    (select count(*) from views.unknown_calls) as unknown_calls

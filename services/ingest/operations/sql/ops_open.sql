-- How much is open, of all tenants. By indexes of what is active and of what waits for people: nothing that is over is
-- looked at.
select
    (select count(*) from views.turns where status <> 'ended') as open_turns,
    (select count(*) from views.approvals) as waiting_approvals,
    (select count(*) from views.unknown_calls) as unknown_calls

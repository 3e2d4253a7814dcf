-- A thread's row, and how far the view has come in its partition: one statement, so one snapshot.
select
    coalesce(p.next_offset, 0) as next_offset,
    coalesce(s."offset", -1) as "offset",
    coalesce(s.state ->> 'status' <> 'none', false) as "exists",
    coalesce(json_array_length(s.state -> 'queue'), 0) as queued,
    coalesce((s.state ->> 'seq')::bigint, 0) as seq,
    coalesce(s.state ->> 'status' in ('closing', 'closed'), false) as is_closing
from (select $1::text as tenant, $2::text as thread, $3::text as topic, $4::int as "partition") as asked
left join views.positions as p on p.topic = asked.topic and p."partition" = asked."partition"
left join views.thread_states as s on s.tenant = asked.tenant and s.thread = asked.thread

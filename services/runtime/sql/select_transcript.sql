-- What the model still sees of a thread, and the seq up to which that holds, in one snapshot. A thread without such
-- items gives one row of nulls; one without a state row gives none, nor does one whose items stand still because the
-- database refused a record of it.
select (s.state ->> 'seq')::bigint as thread_seq,
       i.seq, i.part, i.kind, i.turn, i.step, i.place, i.content, i.digest, i.input, i.call, i.dropped
from views.thread_states s
left join views.items i
    on i.tenant = s.tenant and i.thread = s.thread and i.rewound_at is null and i.compacted_at is null
where s.tenant = $1 and s.thread = $2 and s.quarantined is null
order by i.seq, i.part

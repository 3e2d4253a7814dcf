-- Ends of turns that name another hash chain than the one that the log folds to at that record of the thread.
select e.tenant, e.thread, e.seq, e."partition", e."offset",
    (e.data #>> '{confirmed,seq}')::bigint as named_seq,
    e.data #>> '{confirmed,chain}' as named_chain,
    coalesce(c.chain, case when e.data #>> '{confirmed,seq}' = '0' then repeat('0', 64) end) as folded_chain
from events e
left join events c
    on c.tenant = e.tenant and c.thread = e.thread and c.seq = (e.data #>> '{confirmed,seq}')::bigint
where e.type = 'turn.ended'
    and e.data is not null
    and e.data #>> '{confirmed,chain}' is distinct from
        coalesce(c.chain, case when e.data #>> '{confirmed,seq}' = '0' then repeat('0', 64) end)
order by e.tenant, e.thread, e.seq

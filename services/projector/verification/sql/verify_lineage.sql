-- Threads whose creation names another hash chain than the one that their parent folds to at that record. Null where
-- the parent is not here so far: its partition may have been read less far, or not at all.
select e.tenant, e.thread, e.seq, e."partition", e."offset",
    e.data #>> '{lineage,parent}' as parent,
    (e.data #>> '{lineage,seq}')::bigint as named_seq,
    e.data #>> '{lineage,chain}' as named_chain,
    coalesce(c.chain, case when e.data #>> '{lineage,seq}' = '0' then repeat('0', 64) end) as folded_chain
from events e
left join events c
    on c.tenant = e.tenant and c.thread = e.data #>> '{lineage,parent}'
    and c.seq = (e.data #>> '{lineage,seq}')::bigint
where e.type = 'thread.created'
    and e.data #>> '{lineage,parent}' is not null
    and e.data #>> '{lineage,chain}' is distinct from
        coalesce(c.chain, case when e.data #>> '{lineage,seq}' = '0' then repeat('0', 64) end)
order by e.tenant, e.thread, e.seq

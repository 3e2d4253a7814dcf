-- The lineage of the fork that an earlier try of this command made.
select data #>> '{lineage,parent}' as parent, (data #>> '{lineage,seq}')::bigint as seq
from views.events
where tenant = $1 and thread = $2 and id = $3::uuid and actor like 'user:%'
order by seq
limit 1

-- The lineage of a fork that was made by the command with this id before.
select data #>> '{lineage,parent}' as parent, (data #>> '{lineage,seq}')::bigint as seq
from views.events
where tenant = $1 and thread = $2 and id = $3::uuid and actor like 'user:%'
order by seq
limit 1

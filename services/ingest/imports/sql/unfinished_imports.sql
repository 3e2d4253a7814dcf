-- How many imports somebody could take up now.
select count(*) as waiting
from ingest.imports
where status = 'waiting' or (status = 'running' and lease_until < now())

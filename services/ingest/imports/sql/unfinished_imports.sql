-- How many imports a worker could take now.
select count(*) as waiting
from ingest.imports
where status = 'waiting' or (status = 'running' and lease_until < now())

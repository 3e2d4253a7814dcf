-- The next of an import's files that are done, with what was found in each.
select number, path, report, outcome, waits_for
from ingest.import_files
where tenant = $1 and import = $2 and number > $3 and not companion and report is not null
order by number
limit $4

select
    number, path, sha256, size, companion, report is not null as is_done,
    array(
        select thread ->> 'source_id'
        from jsonb_array_elements(coalesce(outcome, '[]')) as thread
    ) as sessions
from ingest.import_files
where tenant = $1 and import = $2::uuid
order by number

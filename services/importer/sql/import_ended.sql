-- What the end of an import says, where the record is one.
select data::text as data
from views.events
where tenant = $1 and thread = $2 and seq = $3 and type = 'thread.import_ended' and effect = 'applied'

select number
from threadlog.generations
where status = 'building'

-- In the order of the log.
select seq, (data ->> 'to_turn')::bigint as to_turn, source
from views.events
where tenant = $1 and thread = $2 and type = 'thread.rewound' and effect = 'applied'
order by seq

-- Records of a tenant that could not be read or stored, newest first. For operators.
select at, topic, "partition", "offset", thread, seq, fault, reason
from views.dead_letters
where tenant = $1 and at < $2
order by at desc, topic desc, "partition" desc, "offset" desc
limit 100

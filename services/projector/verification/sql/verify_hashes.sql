-- Records whose value is not the one that their producer hashed.
select tenant, thread, seq, "partition", "offset", reason
from dead_letters
where fault = 'hash_mismatch'
order by "partition", "offset"

-- The columns of a table's primary key, in its order, and whether their order depends on a collation.
select a.attname as name, a.attcollation <> 0 as is_collated
from pg_index i
cross join lateral unnest(i.indkey) with ordinality as k (attnum, place)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = to_regclass($1) and i.indisprimary
order by k.place

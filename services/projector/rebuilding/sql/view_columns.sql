-- The columns of a view or table; none if it does not exist.
select attname
from pg_attribute
where attrelid = to_regclass($1) and attnum > 0 and not attisdropped

-- The calls of a turn with their results.
select call, step, index, tool, args, status, outcome, result, milliseconds, settled_at
from views.tool_calls
where tenant = $1 and thread = $2 and turn = $3
order by step, index

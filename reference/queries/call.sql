-- One tool call, by the three numbers of its name: 3, 1 and 0 for `3.1.0`.
select tool, args, status, outcome, result, attempts, proposed_at, settled_at
from views.tool_calls
where tenant = $1 and thread = $2 and turn = $3 and step = $4 and index = $5

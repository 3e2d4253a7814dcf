select tool, attempts, pool, claim from views.tool_calls where tenant = $1 and thread = $2 and call = $3

-- Calls that were approved with other arguments than those of the model.
update items t set content = jsonb_set(t.content, '{args}', c.args)
from unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::jsonb[]) as c (tenant, thread, seq, call, args)
where t.tenant = c.tenant and t.thread = c.thread and t.seq = c.seq and t.kind = 'tool_call' and t.call = c.call

-- A tenant's usage by day (UTC) and model. Each response of a provider counts once, even if several threads have it.
select (at at time zone 'UTC')::date as day, model, count(*) as responses, sum(input_tokens) as input_tokens,
    sum(output_tokens) as output_tokens, sum(cached_tokens) as cached_tokens, sum(reasoning_tokens) as reasoning_tokens
from views.usage
where tenant = $1 and at >= $2 and at < $3 and counted
group by day, model
order by day, model

-- What counts for one thread from $3 until $4, by day and model, after ($5, $6).
select
    (at at time zone 'UTC')::date as day, model, count(*) as responses,
    sum(input_tokens)::bigint as input_tokens, sum(output_tokens)::bigint as output_tokens,
    sum(cached_tokens)::bigint as cached_tokens, sum(reasoning_tokens)::bigint as reasoning_tokens
from views.usage
where
    tenant = $1 and thread = $2 and at >= $3 and at < $4 and counted
    and ((at at time zone 'UTC')::date, model) > ($5::date, $6::text)
group by 1, 2
order by 1, 2
limit $7

-- What a tenant has used from $2 until $3, by day and model, after ($4, $5). Each response of a provider counts once.
select
    (at at time zone 'UTC')::date as day, model, count(*) as responses,
    sum(input_tokens)::bigint as input_tokens, sum(output_tokens)::bigint as output_tokens,
    sum(cached_tokens)::bigint as cached_tokens, sum(reasoning_tokens)::bigint as reasoning_tokens
from views.usage
where
    tenant = $1 and at >= $2 and at < $3 and counted
    and ((at at time zone 'UTC')::date, model) > ($4::date, $5::text)
group by 1, 2
order by 1, 2
limit $6

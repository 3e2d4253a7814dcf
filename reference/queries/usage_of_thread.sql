-- The tokens that count for one thread, by model.
select model, count(*) as responses, sum(input_tokens) as input_tokens, sum(output_tokens) as output_tokens
from views.usage
where tenant = $1 and thread = $2 and counted
group by model
order by model

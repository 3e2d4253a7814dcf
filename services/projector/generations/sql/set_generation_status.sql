update threadlog.generations
set status = $2, live_since = case when $2 = 'live' then now() else live_since end
where number = $1

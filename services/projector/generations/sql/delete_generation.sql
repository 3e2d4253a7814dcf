delete from threadlog.generations
where number = $1

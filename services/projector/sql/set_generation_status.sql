update threadlog.generations set status = $2
where number = $1

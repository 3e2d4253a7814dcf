insert into threadlog.migrations (owner, number, name, sha256)
values ($1, $2, $3, $4)

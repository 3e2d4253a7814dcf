insert into threadlog.generations (fold_version, projection_version, cluster_id, topic, status)
values ($1, $2, $3, $4, $5)
returning number

select number, fold_version, projection_version, cluster_id, topic
from threadlog.generations
order by number

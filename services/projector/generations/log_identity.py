"""Whether a generation was built from this log, checked from outside, while nobody or somebody else writes it.

Four signs in a row, the cheap ones first: the id of the cluster, the number of partitions, the ends of the log, and the
digests of the last records.
"""

from services.chassis.log.port import Log, TopicPartition
from services.projector.generations import schema_sql
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.generations.record_digests import replaced_records
from services.projector.generations.store import Generation


async def is_built_from(generation: Generation, log: Log, cluster_id: str, lock: MaintenanceLock) -> bool:
    """Tell whether the generation was built from the log. False if any sign says that it was another one."""
    if generation.cluster_id != cluster_id:
        return False
    query = schema_sql.select_last_records(generation.schema)
    rows = await lock.do(lambda connection: connection.fetch(query, generation.topic))
    partitions = await log.partition_count(generation.topic)
    if any(row[0] >= partitions for row in rows):
        return False
    stored = {TopicPartition(generation.topic, row[0]): row[1] for row in rows}
    ends = await log.end_offsets(stored)
    if any(ends[tp] < at for tp, at in stored.items()):
        return False
    digests = {TopicPartition(generation.topic, row[0]): (row[1] - 1, row[2]) for row in rows if row[2]}
    return not digests or not await replaced_records(log, digests)

"""The newest trajectories of a run, as a sample to look at."""

import pyarrow as pa

from offbeat.errors import PositionOutOfRange, TrajectoryError
from offbeat.log import Log
from offbeat.runs import Run
from offbeat.trajectory import RecordHeaders, TrajectoryBatch, decode
from offbeat.workloads import open_workload

RECORDS_PER_PARTITION = 8


def sample_trajectories(run: Run, *, limit: int) -> TrajectoryBatch | None:
    """At most `limit` of the newest trajectories, evenly from every generator; None when there are none.

    Records that do not decode are left out: the intake has quarantined and counted them.
    """
    schema = open_workload(run.config, base=run.base).schema
    log = run.open_log()
    try:
        share = max(1, limit // log.num_partitions)
        batches = []
        for partition in range(log.num_partitions):
            found = _newest(log, partition, schema)
            if found is not None:
                batches.append(found.slice(max(0, len(found) - share), len(found)))
    finally:
        log.close()
    # With more generators than `limit`, one of each would be too many.
    return TrajectoryBatch.concat(batches[:limit]) if batches else None


def _newest(log: Log, partition: int, schema: pa.Schema) -> TrajectoryBatch | None:
    begin, end = log.begin("trajectories", partition), log.end("trajectories", partition)
    try:
        records = log.read("trajectories", partition, max(begin, end - RECORDS_PER_PARTITION))
    except PositionOutOfRange:  # Trimmed between the two calls.
        return None
    batches = []
    for record in records:
        try:
            batches.append(decode(RecordHeaders.parse(record.headers), record.payload, schema))
        except TrajectoryError:
            continue
    return TrajectoryBatch.concat(batches) if batches else None

"""Trimming the log: what is old and resolved goes, what a kept checkpoint needs stays."""

import logging
import time

from offbeat.errors import LogDamaged
from offbeat.ledger.plan import Resolved
from offbeat.ledger.rows import Cursor
from offbeat.log import Log

logger = logging.getLogger(__name__)


def trim_resolved(log: Log, oldest_needed: Resolved, *, older_than_s: float) -> dict[int, int]:
    """Trim trajectories appended more than `older_than_s` seconds ago that the oldest kept checkpoint has behind it.

    Returns how many positions went, by partition. What is pending is never trimmed, whatever its age. A damaged
    partition is named and left as it is: whether a run can go on with it is not for its cleaning to decide.
    """
    horizon_ns = time.time_ns() - int(older_than_s * 1e9)
    trimmed = {}
    for partition, cursor in oldest_needed.cursors.items():
        try:
            gone = _trim(log, partition, cursor, horizon_ns)
        except LogDamaged as error:
            logger.warning("partition %d is not trimmed: %s", partition, error)
            continue
        if gone:
            trimmed[partition] = gone
    return trimmed


def _trim(log: Log, partition: int, cursor: Cursor, horizon_ns: int) -> int:
    before = min(cursor.position, log.position_at("trajectories", partition, horizon_ns))
    begin = log.begin("trajectories", partition)
    if before > begin:
        log.trim("trajectories", partition, before)
    return max(0, before - begin)

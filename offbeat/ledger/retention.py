"""Trimming the log: what is old and resolved goes, what a kept checkpoint needs stays."""

import time

from offbeat.ledger.plan import Resolved
from offbeat.log import Log


def trim_resolved(log: Log, oldest_needed: Resolved, *, older_than_s: float) -> dict[int, int]:
    """Trim trajectories appended more than `older_than_s` seconds ago that the oldest kept checkpoint has behind it.

    Returns how many positions went, by partition. What is pending is never trimmed, whatever its age.
    """
    horizon_ns = time.time_ns() - int(older_than_s * 1e9)
    trimmed = {}
    for partition, cursor in oldest_needed.cursors.items():
        before = min(cursor.position, log.position_at("trajectories", partition, horizon_ns))
        begin = log.begin("trajectories", partition)
        if before > begin:
            log.trim("trajectories", partition, before)
            trimmed[partition] = before - begin
    return trimmed

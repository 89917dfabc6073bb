"""What is done at the end of every run, however it ended: old checkpoints and trajectories go, status is corrected."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from offbeat.errors import RegistryError
from offbeat.ledger.retention import trim_resolved
from offbeat.log import Log
from offbeat.registry import Registry
from offbeat.runs import Run, read_status, write_status
from offbeat.store import Store
from offbeat.trainer import checkpoint as checkpoints
from offbeat.trainer.checkpoint import Check, VerifiedOnce

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What a cleanup did. deleted: steps of checkpoints; trimmed: log positions by partition."""

    deleted: tuple[int, ...]
    trimmed: dict[int, int]


def clean_up(run: Run, connect: Callable[[Run], Registry]) -> Cleanup:
    """Retention of checkpoints and trajectories; nobody may be working in the run meanwhile.

    While the registry is away nothing is deleted: what its versions refer to cannot be known.
    """
    store, log, check = run.open_store(), run.open_log(), VerifiedOnce()
    try:
        deleted = _retain(run, store, connect, check)
        trimmed = _trim(run, store, log, check)
        _mark_stopped(store)
    finally:
        log.close()
        store.close()
    return Cleanup(deleted=tuple(deleted), trimmed=trimmed)


def _retain(run: Run, store: Store, connect: Callable[[Run], Registry], check: Check) -> list[int]:
    if not checkpoints.list_checkpoints(run.checkpoints):
        return []
    try:
        referenced = connect(run).referenced_steps(run.run_id)
    except RegistryError as error:
        logger.warning("no checkpoint is deleted while the registry does not say what it refers to: %s", error)
        return []
    keep = run.config.strategy.keep_checkpoints
    return checkpoints.retain(run, store, keep=keep, referenced=referenced, check=check)


def _trim(run: Run, store: Store, log: Log, check: Check) -> dict[int, int]:
    needed = checkpoints.oldest_needed(run, store, check)
    return trim_resolved(log, needed, older_than_s=run.config.log.retention_s) if needed else {}


def _mark_stopped(store: Store) -> None:
    for role, status in read_status(store).items():
        if status.get("phase") != "stopped":
            write_status(store, role, {**status, "phase": "stopped"})

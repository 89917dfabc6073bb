"""Uploads: finished checkpoints on their way to the store, in the background, then retention and trimming.

A store that is away is waited for; training goes on meanwhile. Only the newest checkpoint must arrive, so one that
waits behind a newer is left out.
"""

import logging
import threading

from offbeat.errors import CheckpointError, Fenced, LogError, StoreError
from offbeat.ledger.retention import trim_resolved
from offbeat.log import Log
from offbeat.runs import Run
from offbeat.store import Store
from offbeat.trainer import checkpoint as checkpoints
from offbeat.trainer.checkpoint import Checkpoint, VerifiedOnce

logger = logging.getLogger(__name__)
RETRY_S = 2.0


class Uploader:
    """One thread; `submit` never blocks."""

    def __init__(self, run: Run, store: Store, log: Log, *, epoch: int) -> None:
        self.trouble = ""
        self.uploaded: Checkpoint | None = None
        self._run = run
        self._store = store
        self._log = log
        self._epoch = epoch
        self._check = VerifiedOnce()
        self._fenced: Fenced | None = None
        self._waiting: Checkpoint | None = None
        self._busy = False
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._body, name="uploads", daemon=True)
        self._thread.start()

    def submit(self, checkpoint: Checkpoint) -> None:
        """Hand over a finished checkpoint; raises Fenced when a newer trainer was found at work."""
        with self._changed:
            if self._fenced:
                raise self._fenced
            self._waiting = checkpoint
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> None:
        """Wait until the newest submitted checkpoint is stored; raises StoreError when it is not by then, or Fenced."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._fenced or not (self._waiting or self._busy), timeout_s)
            if self._fenced:
                raise self._fenced
            if not done:
                raise StoreError(f"the last checkpoint is not in the store after {timeout_s:.0f} s: {self.trouble}")

    def close(self) -> None:
        """End the thread, without waiting for a store that is away."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=10)

    def _body(self) -> None:
        while (checkpoint := self._next()) is not None:
            try:
                checkpoints.upload(checkpoint, self._store, epoch=self._epoch)
                self._keep_house()
            except Fenced as error:
                with self._changed:
                    self._fenced = error
                    self._changed.notify_all()
                return
            except (StoreError, CheckpointError, OSError, LogError) as error:
                self._failed(checkpoint, error)
            else:
                with self._changed:
                    self.uploaded, self.trouble, self._busy = checkpoint, "", False
                    self._changed.notify_all()

    def _next(self) -> Checkpoint | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closing)
            checkpoint, self._waiting = self._waiting, None
            self._busy = checkpoint is not None
            return checkpoint

    def _failed(self, checkpoint: Checkpoint, error: Exception) -> None:
        if not self.trouble:
            logger.warning("checkpoint of step %d is not in the store yet: %s", checkpoint.step, error)
        with self._changed:
            self.trouble = str(error)
            # A newer one that came meanwhile takes its place.
            self._waiting = self._waiting or checkpoint
            self._busy = False
            self._changed.wait_for(lambda: self._closing, RETRY_S)
            if self._closing:
                self._waiting = None

    def _keep_house(self) -> None:
        config = self._run.config
        checkpoints.retain(self._run, self._store, keep=config.strategy.keep_checkpoints, check=self._check)
        oldest = checkpoints.oldest_needed(self._run, self._store, self._check)
        if oldest is not None:
            trim_resolved(self._log, oldest, older_than_s=config.log.retention_s)

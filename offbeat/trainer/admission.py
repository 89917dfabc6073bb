"""Admission: how far generators may run ahead of the trainer.

At most (max_staleness + 1) batches lie between what is trained and what may be generated, one less for each version
that the asking generator is behind, so that in read order nothing gets stale. The trainer grants, generators spend;
a generator that is not heard of gives its grants back. (The capacity rule of AReaL, Fu et al. 2025, section 5.1,
counted from the log instead of remembered.)
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from offbeat.service import Progress, ProgressRequest

LEASE_S = 15.0


@dataclass(slots=True)
class _Lease:
    """What one generator's present life may still append."""

    incarnation: int
    granted: int
    heard_at: float


class Admission:
    """Answers generators; thread-safe. `update` is called by the trainer, `answer` by the service's threads."""

    def __init__(self, *, epoch: int, max_staleness: int) -> None:
        self._epoch = epoch
        self._max_staleness = max_staleness
        self._changed = threading.Condition()
        self._leases: dict[int, _Lease] = {}
        self._seen: Mapping[str, int] = {}
        self._waiting = 0
        self._batch_size = 1
        self._step = 0
        self._version = -1
        self._finished = False

    def update(self, *, waiting: int, batch_size: int, seen: Mapping[str, int]) -> None:
        """What intake and planner see.

        waiting: trajectories that are read and neither dropped nor trained. seen: next sequence by producer.
        """
        with self._changed:
            self._waiting, self._batch_size, self._seen = waiting, batch_size, dict(seen)
            self._changed.notify_all()

    def advance(self, *, step: int, version: int, finished: bool = False) -> None:
        """A step is finished; `version` is the newest that can be fetched."""
        with self._changed:
            self._step, self._version, self._finished = step, version, finished
            self._changed.notify_all()

    def answer(self, request: ProgressRequest) -> Progress:
        """Grant what may be granted; waits up to `patience_s` for a grant, a newer version or the end."""
        deadline = time.monotonic() + request.patience_s
        with self._changed:
            lease = self._lease_of(request)
            while not self._answerable(request, lease):
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            lease.heard_at = time.monotonic()
            return Progress(
                epoch=self._epoch,
                step=self._step,
                version=self._version,
                granted=lease.granted,
                finished=self._finished,
            )

    def _lease_of(self, request: ProgressRequest) -> _Lease:
        lease = self._leases.get(request.generator)
        silent = lease is not None and time.monotonic() - lease.heard_at > LEASE_S
        if lease is None or silent or lease.incarnation < request.incarnation:
            lease = _Lease(request.incarnation, request.produced, time.monotonic())
            self._leases[request.generator] = lease
        elif lease.incarnation > request.incarnation:
            # A former life still asks: it may spend what it has appended and nothing more.
            return _Lease(request.incarnation, request.produced, time.monotonic())
        lease.granted = max(lease.granted, request.produced)
        lease.heard_at = time.monotonic()
        return lease

    def _answerable(self, request: ProgressRequest, lease: _Lease) -> bool:
        if self._finished or self._version > request.version:
            self._grant(request, lease)
            return True
        return self._grant(request, lease)

    def _grant(self, request: ProgressRequest, lease: _Lease) -> bool:
        """Grant the wish where there is room; whether it is granted now. Nothing is granted twice."""
        if request.wanted <= 0 or self._leases.get(request.generator) is not lease:
            return False
        if lease.granted - request.produced >= request.wanted:
            return True
        behind = max(0, self._version - request.version)
        limit = (self._max_staleness + 1 - behind) * self._batch_size
        outstanding = self._outstanding() - max(0, lease.granted - request.produced)
        # A wish larger than the limit is granted when the trainer would starve without it.
        starving = behind <= self._max_staleness and outstanding < self._batch_size
        if outstanding + request.wanted <= limit or starving:
            lease.granted = request.produced + request.wanted
            return True
        return False

    def _outstanding(self) -> int:
        now = time.monotonic()
        leased = 0
        for generator, lease in self._leases.items():
            if now - lease.heard_at < LEASE_S:
                leased += max(0, lease.granted - self._seen.get(f"{generator}/{lease.incarnation}", 0))
        return self._waiting + leased

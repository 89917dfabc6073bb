"""The planner: holds what may be trained, oldest first, and turns it into the decision about the next step.

    items in read order ──> evict beyond capacity ──> drop stale ──> take batch_size trajectories ──> StepRow + batch

Trajectories leave from the head only, so what is resolved is one cursor per partition.
"""

import hashlib
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from offbeat.config import RunConfig
from offbeat.ledger import Cursor, Drop, Fate, Resolved, Segment, StepRow, Totals
from offbeat.trainer.controllers import Settings, Signals, next_settings, should_publish
from offbeat.trainer.intake import Item
from offbeat.trajectory import TrajectoryBatch


def step_seed(run_seed: int, step: int) -> int:
    """The seed of everything random in one step: 63 bits that depend on the run's seed and the step alone."""
    digest = hashlib.blake2b(f"{run_seed}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A decided step, its trajectories, and the place on the plan after its row (0 until it is written)."""

    row: StepRow
    batch: TrajectoryBatch
    plan_position: int = 0


@dataclass(slots=True)
class _OpenRow:
    """The decision in the making."""

    totals: Totals
    segments: list[Segment] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    cursors: dict[int, Cursor] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    parts: list[TrajectoryBatch] = field(default_factory=list)


class Planner:
    """The buffer between intake and learner. Owned by one thread."""

    def __init__(self, config: RunConfig, state: Resolved, epoch: int) -> None:
        self.settings = Settings.start(config, state.settings)
        self.step = state.step
        self.version = state.version
        self._config = config
        self._epoch = epoch
        self._queue: deque[Item] = deque()
        self._open = _OpenRow(totals=state.totals)
        self._fresh = 0
        self._rows = 0
        self._bytes = 0

    @property
    def num_fresh(self) -> int:
        """Trajectories that the next steps may train on."""
        return self._fresh

    @property
    def ready(self) -> bool:
        """Whether a whole batch is there."""
        return self._fresh >= self.settings.batch_size

    @property
    def _oldest_allowed(self) -> int:
        return self.version - self._config.training.max_staleness

    def offer(self, items: Iterable[Item]) -> None:
        """Take up new items, then evict the oldest beyond the buffer's bounds."""
        for item in items:
            self._queue.append(item)
            self._fresh += item.num_fresh(self._oldest_allowed)
            if item.batch is not None:
                self._rows += len(item)
                self._bytes += item.batch.nbytes
        self._evict()

    def plan(self, signals: Signals) -> Planned:
        """Decide the next step; call only when `ready`."""
        need = self.settings.batch_size
        while need:
            need -= self._take_from(self._queue[0], need)
        publish = should_publish(self.settings, signals, self._config)
        settings = next_settings(self.settings, signals, self._config)
        opened = self._open
        row = StepRow(
            epoch=self._epoch,
            step=self.step + 1,
            seed=step_seed(self._config.seed, self.step + 1),
            version_in=self.version,
            publish=publish,
            batch_size=self.settings.batch_size,
            segments=tuple(opened.segments),
            drops=tuple(opened.drops),
            cursors=opened.cursors,
            marks=opened.marks,
            totals=opened.totals,
            settings=settings.to_mapping(),
            planned_at_ns=time.time_ns(),
        )
        planned = Planned(row=row, batch=TrajectoryBatch.concat(opened.parts))
        self._advance(row, settings)
        return planned

    def _advance(self, row: StepRow, settings: Settings) -> None:
        self.step, self.settings = row.step, settings
        self._open = _OpenRow(totals=row.totals)
        if row.version_out != self.version:
            self.version = row.version_out
            self._fresh = sum(item.num_fresh(self._oldest_allowed) for item in self._queue)

    def _take_from(self, item: Item, need: int) -> int:
        """Resolve the first run of the head item; how many trajectories were taken into the batch."""
        if item.fate:
            self._drop(item, item.end, item.fate, item.reason)
            return 0
        end, stale = item.first_run(self._oldest_allowed)
        if stale:
            newest = int(item.batch.min_version[item.row]) if item.batch else 0
            self._drop(
                item,
                end,
                "stale",
                f"version {newest} at {self.version}, max_staleness {self._config.training.max_staleness}",
            )
            return 0
        taken = min(need, end - item.row)
        self._open.segments.append(Segment(item.partition, item.position, item.row, item.row + taken))
        if item.batch is not None:
            self._open.parts.append(item.batch.slice(item.row, item.row + taken))
        self._open.totals = self._open.totals.plus("trained", taken)
        self._fresh -= taken
        self._resolve(item, item.row + taken)
        return taken

    def _drop(self, item: Item, end: int, fate: Fate, reason: str) -> None:
        dropped = item.drop(item.row, end, fate, reason)
        self._open.drops.append(dropped)
        self._open.totals = self._open.totals.plus(fate, dropped.count)
        self._resolve(item, end)

    def _resolve(self, item: Item, row: int) -> None:
        if item.batch is not None:
            share = (row - item.row) / max(1, item.count)
            self._rows -= row - item.row
            self._bytes -= int(item.batch.nbytes * share)
        item.row = row
        self._open.cursors[item.partition] = item.cursor
        if item.producer:
            self._open.marks[item.producer] = item.following
        if item.row >= item.end:
            self._queue.popleft()

    def _evict(self) -> None:
        training = self._config.training
        while self._queue and (self._rows > training.buffer_capacity or self._bytes > training.buffer_bytes):
            item = self._queue[0]
            if item.fate:
                self._drop(item, item.end, item.fate, item.reason)
                continue
            excess = len(item) if self._bytes > training.buffer_bytes else self._rows - training.buffer_capacity
            unit = self._config.group_size
            end = min(item.end, item.row + max(1, -(-excess // unit)) * unit)
            before = item.num_fresh(self._oldest_allowed)
            self._drop(
                item,
                end,
                "evicted",
                f"buffer full: {training.buffer_capacity} trajectories, {training.buffer_bytes} bytes",
            )
            self._fresh -= before - item.num_fresh(self._oldest_allowed)

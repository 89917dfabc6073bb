"""Two small controllers whose state travels in the plan, so that repeated steps repeat their decisions.

Batch size: grows while a backlog waits or trajectories get old, shrinks while the trainer starves.
Sync interval: publishing after every step is the start; it becomes rarer while it costs more than its share of time,
and more frequent again while generators lag too many steps behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from offbeat.config import RunConfig

GROWTH, SHRINKAGE = 1.25, 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What the controllers see before a step: measured since the last decision.

    backlog: trajectories ready. starved: whether the trainer waited for data. age_s: median trajectory age.
    lag_steps: most steps that a trajectory of the last batch was behind. publish_share: share of time publishing took.
    since_publish_s: seconds since the last published version.
    """

    backlog: int
    starved: bool
    age_s: float
    lag_steps: int
    publish_share: float
    since_publish_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The controllers' state: trajectories of the next batch, and least seconds between published versions."""

    batch_size: int
    sync_interval_s: float

    @classmethod
    def start(cls, config: RunConfig, kept: Mapping[str, float]) -> "Settings":
        """The kept state of the plan, or the configured start; bounds of a changed configuration hold at once."""
        low, high = config.training.batch_bounds
        size = int(kept.get("batch_size", config.training.batch_size))
        interval = min(kept.get("sync_interval_s", 0.0), config.training.sync_interval)
        return cls(batch_size=min(max(size, low), high), sync_interval_s=interval)

    def to_mapping(self) -> dict[str, float]:
        """As the plan keeps it."""
        return {"batch_size": self.batch_size, "sync_interval_s": self.sync_interval_s}


def next_settings(settings: Settings, signals: Signals, config: RunConfig) -> Settings:
    """The settings of the next step."""
    size = _batch_size(settings.batch_size, signals, config)
    return replace(settings, batch_size=size, sync_interval_s=_sync_interval(settings.sync_interval_s, signals, config))


def should_publish(settings: Settings, signals: Signals, config: RunConfig) -> bool:
    """Whether the parameters after this step become a policy version. Synchronous runs publish every step."""
    return config.training.max_staleness == 0 or signals.since_publish_s >= settings.sync_interval_s


def _batch_size(size: int, signals: Signals, config: RunConfig) -> int:
    low, high = config.training.batch_bounds
    if signals.backlog >= 2 * size or signals.age_s > config.training.age_target_s:
        size = int(size * GROWTH) + 1
    elif signals.starved and signals.backlog < size:
        size = int(size * SHRINKAGE)
    size -= size % config.group_size
    return min(max(size, low), high)


def _sync_interval(interval: float, signals: Signals, config: RunConfig) -> float:
    training = config.training
    if signals.lag_steps > max(1, training.max_staleness):
        interval *= 0.5
    elif signals.publish_share > training.sync_cost_share:
        # Far enough to bring the share to its bound in one decision; never more than doubled, from at least 10 ms.
        needed = max(interval, 0.01) * signals.publish_share / training.sync_cost_share
        interval = min(needed, 2 * max(interval, 0.01))
    elif signals.publish_share < training.sync_cost_share / 4:
        interval *= SHRINKAGE
    return min(interval, training.sync_interval) if interval > 1e-3 else 0.0

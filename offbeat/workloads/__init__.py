"""The kinds of work. `open_workload` is the one place that knows them all."""

from offbeat.config import RunConfig
from offbeat.workloads.base import Learner, Policy, Rollout, Scores, Weights, Workload

__all__ = ["Learner", "Policy", "Rollout", "Scores", "Weights", "Workload", "open_workload"]


def open_workload(config: RunConfig) -> Workload:
    """The workload that `config.workload.kind` names; raises ConfigError (unknown environment, unsupported space)."""
    from offbeat.workloads.control import ControlWorkload

    return ControlWorkload(config)

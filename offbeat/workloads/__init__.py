"""The kinds of work. `open_workload` is the one place that knows them all."""

from pathlib import Path

from offbeat.config import RunConfig
from offbeat.errors import ConfigError
from offbeat.workloads.base import Learner, Policy, Rollout, Scores, Weights, Workload

__all__ = ["Learner", "Policy", "Rollout", "Scores", "Weights", "Workload", "open_workload"]


def open_workload(config: RunConfig, *, base: Path | None = None) -> Workload:
    """The workload that `config.workload.kind` names; raises ConfigError (unknown environment, unsupported space).

    base: folder of what learning starts from, where that kind of work has one.
    """
    if config.workload.kind == "language":
        from offbeat.workloads.language import LanguageWorkload

        if base is None:
            raise ConfigError("work of kind language needs the folder of its base model; it belongs to a run")
        return LanguageWorkload(config, base=base)
    from offbeat.workloads.control import ControlWorkload

    return ControlWorkload(config)

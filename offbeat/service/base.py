"""What generators and trainer say to each other over the policy service."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRequest:
    """A generator's report and wish. `produced` counts trajectories that this incarnation has appended."""

    generator: int
    incarnation: int
    produced: int
    wanted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The trainer's answer. `granted` is how many trajectories this incarnation may have appended in all."""

    epoch: int
    step: int
    version: int
    granted: int
    finished: bool

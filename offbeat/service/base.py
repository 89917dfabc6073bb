"""What generators and trainer say to each other over the policy service."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRequest:
    """A generator's report and wish.

    `version` is the policy version that it would act with now; `produced` counts trajectories that this incarnation has
    appended; `wanted` is how many more it would append next. `patience_s` is how long the answer may wait for a grant
    or a newer version.
    """

    generator: int
    incarnation: int
    version: int
    produced: int
    wanted: int
    patience_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The trainer's answer. `granted` is how many trajectories this incarnation may have appended in all."""

    epoch: int
    step: int
    version: int
    granted: int
    finished: bool

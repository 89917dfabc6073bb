"""The rollout of one generator: unrolls by a stepper, and new environments after a failure."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from offbeat.config import ControlConfig
from offbeat.errors import ConfigError, WorkloadError
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.base import Policy
from offbeat.workloads.control.columns import Spaces
from offbeat.workloads.control.environment import name_of
from offbeat.workloads.control.stepper import Stepper

if TYPE_CHECKING:
    from offbeat.workloads.control.policy import ActorCritic


class ControlRollout:
    """Unrolls of `unroll_length` steps of `num_envs` environments; episodes go on from one unroll to the next.

    The same seed, configuration and policies give the same trajectories. Raises ConfigError when the environment
    cannot be made.
    """

    def __init__(self, config: ControlConfig, spaces: Spaces, schema: pa.Schema, *, seed: int) -> None:
        self._config, self._spaces, self._schema, self._seed = config, spaces, schema, seed
        self._lives = 0
        self._stepper: Stepper | None = self._start()

    @property
    def num_trajectories(self) -> int:
        """One per environment."""
        return self._config.num_envs

    @property
    def faults(self) -> Mapping[str, int]:
        """None: the environment's rewards come with its steps."""
        return {}

    def collect(
        self, policy: Policy, version: int, newest: Callable[[], tuple[int, Policy]] | None = None
    ) -> TrajectoryBatch:
        """One unroll of every environment with this policy; after an error the next call makes new environments."""
        stepper = self._stepper or self._restart()
        try:
            stepper.run(cast("ActorCritic", policy))
        except BaseException:  # whatever stopped it, half an unroll cannot be continued
            self.close()
            raise
        return stepper.unroll.to_batch(self._schema, version)

    def close(self) -> None:
        """Close the environments; errors of their own are no longer of interest."""
        stepper, self._stepper = self._stepper, None
        if stepper is not None:
            with suppress(WorkloadError):
                stepper.close()

    def _restart(self) -> Stepper:
        try:
            self._stepper = self._start()
        except ConfigError as error:
            raise WorkloadError(f"{name_of(self._config)} cannot be made again: {error}") from error
        return self._stepper

    def _start(self) -> Stepper:
        # Every life has randomness of its own: with the same seeds a failing episode would fail again.
        sequence = np.random.SeedSequence([self._seed, self._lives])
        self._lives += 1
        return Stepper(self._config, self._spaces, sequence)

"""Control: a Gymnasium environment played by a feed-forward actor-critic.

environment ──> stepper ──> buffers ──> columns ──> unrolls ──> learner ──> policy ──> evaluation
(spaces, wrappers)    rollout: starts it anew                               (networks, scaling)
                      after a failure
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from offbeat.config import RunConfig, control_sections
from offbeat.errors import CheckpointError, ConfigError
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.base import Learner, Policy, Rollout, Scores
from offbeat.workloads.control.columns import control_schema

if TYPE_CHECKING:
    from offbeat.workloads.control.policy import ActorCritic


class ControlWorkload:
    """The work of a ControlConfig; raises ConfigError when its environment cannot be made or has unsupported spaces."""

    def __init__(self, config: RunConfig) -> None:
        from offbeat.workloads.control.environment import probe_spaces

        self._run, self._config = config, control_sections(config)[0]
        self._spaces = probe_spaces(self._config)
        self._schema = control_schema(
            observation_shape=self._spaces.observation_shape,
            observation_dtype=self._spaces.observation_dtype,
            action=self._spaces.action,
            unroll_length=self._config.unroll_length,
        )

    @property
    def schema(self) -> pa.Schema:
        """Columns of its trajectories (see columns.py)."""
        return self._schema

    def num_samples(self, batch: TrajectoryBatch) -> int:
        """Environment steps."""
        return len(batch) * self._config.unroll_length

    def check(self) -> str:
        """The environment can be made, and a fresh policy can take a step in it."""
        small = self._config.model_copy(update={"num_envs": 1, "unroll_length": 2})
        probe = ControlWorkload(self._run.model_copy(update={"workload": small}))
        policy = probe.make_policy()
        policy.load_weights(probe.make_learner().weights())
        rollout = probe.make_rollout(seed=self._run.seed)
        try:
            rollout.collect(policy, 0)
        finally:
            rollout.close()
        return f"{self._config.env_fn or self._config.env_id}, can be made and stepped"

    def prepare(self) -> Mapping[str, float]:
        """Nothing: a policy's first parameters come from the run's seed."""
        return {}

    def make_policy(self) -> Policy:
        """A fresh actor-critic; acts only after `load_weights`."""
        from offbeat.workloads.control.policy import make_actor_critic

        normalize = self._config.normalize_observations
        return make_actor_critic(self._config.policy, self._spaces, normalize=normalize, seed=self._run.seed)

    def make_rollout(self, *, seed: int) -> Rollout:
        """A rollout whose randomness comes from `seed` alone."""
        from offbeat.workloads.control.rollout import ControlRollout

        return ControlRollout(self._config, self._spaces, self._schema, seed=seed)

    def make_learner(self) -> Learner:
        """A learner at step 0; its parameters come from the run's seed alone."""
        from offbeat.workloads.control.learner import ControlLearner

        return ControlLearner(self._run, self._spaces)

    def follow(self) -> None:
        """Refused: a learner of this kind is one process."""
        raise ConfigError("work of kind control trains in one process; start one trainer")

    def load_policy(self, folder: Path) -> Policy:
        """The policy of a checkpoint's `policy/` folder; raises CheckpointError when it acts in other spaces."""
        from offbeat.workloads.control.policy import load_actor_critic

        policy = load_actor_critic(folder)
        if policy.spaces != self._spaces:
            raise CheckpointError(f"{folder}: got a policy for {policy.spaces}, expected one for {self._spaces}")
        return policy

    def evaluate(self, policy: Policy, *, num_episodes: int, seed: int) -> Scores:
        """Returns of greedy episodes on `seed`, `seed + 1`, ...; raises EvaluationError."""
        from offbeat.workloads.control.evaluation import evaluate_policy

        return evaluate_policy(
            self._config,
            self._spaces,
            cast("ActorCritic", policy),
            num_episodes=num_episodes,
            seed=seed,
            max_episode_steps=self._run.evaluation.max_episode_steps,
        )

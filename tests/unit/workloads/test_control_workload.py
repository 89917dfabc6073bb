"""The workload as the rest of the system sees it: every part fits the next."""

import numpy as np
import pytest

from offbeat.config import ControlConfig, RunConfig
from offbeat.errors import CheckpointError, ConfigError
from offbeat.workloads import open_workload


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_collect_learn_save_load_evaluate(env_id, tmp_path):
    config = RunConfig(workload=ControlConfig(env_id=env_id, num_envs=4, unroll_length=6))
    workload = open_workload(config)
    policy, learner, rollout = workload.make_policy(), workload.make_learner(), workload.make_rollout(seed=1)
    policy.load_weights(learner.weights())
    batch = rollout.collect(policy, 0)
    assert len(batch) == rollout.num_trajectories == 4
    assert batch.data.schema.equals(workload.schema)
    assert np.isfinite(learner.step(batch, seed=5)["training_loss"])
    learner.save(tmp_path)
    loaded = workload.load_policy(tmp_path / "policy")
    policy.load_weights(learner.weights())
    ours, theirs = (workload.evaluate(one, num_episodes=2, seed=9).values.tolist() for one in (policy, loaded))
    assert ours == theirs
    rollout.close()


def test_an_unknown_environment_stops_before_anything_starts():
    with pytest.raises(ConfigError, match="CartPole-v1"):
        open_workload(RunConfig(workload=ControlConfig(env_id="CartPole-v9")))


def test_a_policy_for_other_spaces_is_refused(tmp_path):
    pendulum = open_workload(RunConfig(workload=ControlConfig(env_id="Pendulum-v1")))
    pendulum.make_learner().save(tmp_path)
    cartpole = open_workload(RunConfig(workload=ControlConfig(env_id="CartPole-v1")))
    with pytest.raises(CheckpointError, match="expected one for"):
        cartpole.load_policy(tmp_path / "policy")

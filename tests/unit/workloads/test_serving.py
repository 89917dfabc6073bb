"""A policy folder as MLflow's loader opens it: every form of observations in, actions of the environment out."""

import numpy as np
import pandas as pd
import pytest
import torch

from offbeat.config import PolicyConfig
from offbeat.errors import CheckpointError, WorkloadError
from offbeat.workloads.control.columns import Box, Discrete, Spaces
from offbeat.workloads.control.policy import make_actor_critic, save_actor_critic
from offbeat.workloads.serving import _load_pyfunc

FLAT = Spaces(observation_shape=(3,), observation_dtype="float32", action=Discrete(n=4, start=10))
IMAGE = Spaces(observation_shape=(8, 8, 2), observation_dtype="uint8", action=Discrete(n=3))
CONTINUOUS = Spaces(
    observation_shape=(3,),
    observation_dtype="float32",
    action=Box(shape=(2,), low=(-0.001, -np.inf), high=(0.001, np.inf)),
)


def served(spaces, folder):
    policy = make_actor_critic(PolicyConfig(hidden_sizes=(8,), conv_channels=(4,)), spaces, normalize=False, seed=3)
    save_actor_critic(policy, folder)
    return policy, _load_pyfunc(str(folder))


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_actions_are_the_greedy_ones_from_the_spaces_start(tmp_path):
    policy, model = served(FLAT, tmp_path)
    observations = numbers(16, 3)
    expected = policy.greedy(torch.from_numpy(observations)).numpy() + 10
    np.testing.assert_array_equal(model.predict(observations), expected)
    assert len(set(expected.tolist())) > 1


@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows.tolist(),
        lambda rows: rows.astype(np.float64),
        pd.DataFrame,
        lambda rows: pd.DataFrame({"observation": list(rows)}),
        lambda rows: pd.DataFrame({"observation": rows.tolist()}),
    ],
)
def test_every_form_of_observations_gives_the_same_actions(form, tmp_path):
    _, model = served(FLAT, tmp_path)
    rows = numbers(5, 3)
    np.testing.assert_array_equal(model.predict(form(rows)), model.predict(rows))
    np.testing.assert_array_equal(model.predict(form(rows), params={}), model.predict(rows))


def test_box_actions_are_clipped(tmp_path):
    policy, model = served(CONTINUOUS, tmp_path)
    observations = 100 * numbers(6, 3)
    means = policy.greedy(torch.from_numpy(observations)).numpy()
    actions = model.predict(observations)
    assert actions.dtype == np.float32
    bound = np.float32(0.001)
    assert (np.abs(means[:, 0]) > bound).any()
    np.testing.assert_array_equal(actions[:, 0], np.minimum(np.maximum(means[:, 0], -bound), bound))
    np.testing.assert_array_equal(actions[:, 1], means[:, 1])


def test_images_come_whole_or_flattened(tmp_path):
    policy, model = served(IMAGE, tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 2), np.uint8)
    expected = policy.greedy(torch.from_numpy(images)).numpy()
    np.testing.assert_array_equal(model.predict(images), expected)
    np.testing.assert_array_equal(model.predict(pd.DataFrame(images.reshape(4, -1))), expected)


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        (np.zeros((2, 5)), r"got shape \(2, 5\), expected \[N, 3\]"),
        (np.zeros(3), r"got shape \(3,\)"),
        (np.full((1, 3), np.nan), "NaN"),
        ([["a", "b", "c"]], "observations: could not convert"),
        ([[1, 2, 3], [4]], "observations"),
    ],
)
def test_other_observations_are_refused(observations, message, tmp_path):
    _, model = served(FLAT, tmp_path)
    with pytest.raises(WorkloadError, match=message):
        model.predict(observations)


def test_a_folder_without_a_policy_is_refused(tmp_path):
    with pytest.raises(CheckpointError):
        _load_pyfunc(str(tmp_path))

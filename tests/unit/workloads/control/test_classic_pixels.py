"""Frames of a classic environment's rendering: their shape, their order, and what can be read off them."""

import numpy as np
import pytest

from offbeat.config import ControlConfig
from offbeat.errors import ConfigError
from offbeat.workloads.control.classic_pixels import make
from offbeat.workloads.control.columns import Discrete, Spaces
from offbeat.workloads.control.environment import probe_spaces

SMALL = {"screen": (320, 176), "rows": (0, 96), "block": 4, "frames": 3}


def test_cartpole_as_small_stacked_frames():
    config = ControlConfig(env_fn="offbeat.workloads.control.classic_pixels:make", env_kwargs=SMALL)
    expected = Spaces(observation_shape=(24, 80, 3), observation_dtype="uint8", action=Discrete(n=2))
    assert probe_spaces(config) == expected


def test_an_episode_begins_with_copies_of_one_frame_and_moves_on_by_one():
    env = make(**SMALL)
    first, _ = env.reset(seed=4)
    assert env.observation_space.contains(first)
    assert (first == first[..., :1]).all()
    before = first
    for _ in range(4):
        after, *_ = env.step(1)
        np.testing.assert_array_equal(after[..., :2], before[..., 1:])
        before = after
    assert (after[..., 2] != after[..., 0]).any()
    assert (first == first[..., :1]).all(), "an observation given away must not change"


def test_the_cart_is_dark_on_white_and_so_bright_here():
    image, _ = make(**SMALL).reset(seed=0)
    # The cart's body spans lines 61 to 91, the pole to about 76, around the middle, the sky above it is empty.
    assert image[19:22, 40, 0].min() > 150
    assert image[:10, :30].max() == 0


def test_repeat_draws_once_for_several_steps():
    env, single = make(**SMALL, repeat=3), make(**SMALL)
    env.reset(seed=1)
    single.reset(seed=1)
    observation, reward, *_ = env.step(1)
    for _ in range(3):
        expected, *_ = single.step(1)
    assert reward == 3
    np.testing.assert_array_equal(observation[..., -1], expected[..., -1])


def test_other_classic_environments_draw_in_their_own_size():
    env = make("Pendulum-v1", rows=(0, 500), block=20, frames=1)
    assert env.observation_space.shape == (25, 25, 1)
    with pytest.raises(ConfigError, match="leave out `screen`"):
        make("Pendulum-v1", screen=(100, 100))

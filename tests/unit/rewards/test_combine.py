import numpy as np
import pytest

from offbeat.rewards import RewardCombiner


def test_weights_sum_over_what_is_known():
    values = np.array([[1.0, 0.5], [np.nan, 0.5], [1.0, np.nan], [np.nan, np.nan]])
    got = RewardCombiner([2.0, 4.0])(values)
    np.testing.assert_array_equal(got, [4.0, 2.0, 2.0, np.nan])


def test_clip():
    np.testing.assert_array_equal(RewardCombiner([1.0], clip=0.5)(np.array([[3.0], [-3.0], [0.25]])), [0.5, -0.5, 0.25])


def test_smoothing_blends_with_the_running_mean():
    combine = RewardCombiner([1.0], smoothing=0.5)
    # mean 2: 0.5 x 1 + 0.5 x 2, 0.5 x 3 + 0.5 x 2
    np.testing.assert_allclose(combine(np.array([[1.0], [3.0]])), [1.5, 2.5])
    # mean 0.99 x 2 + 0.01 x 4 = 2.02
    assert combine(np.array([[4.0]]))[0] == pytest.approx(0.5 * 4 + 0.5 * 2.02)

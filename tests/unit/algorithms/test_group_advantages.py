"""Advantages of groups, held to numbers worked out by hand and to TRL's own statistics."""

import math

import pytest
import torch

from offbeat.algorithms.group_advantages import EPSILON, Estimator, equal_groups, group_advantages

NAN = math.nan
ESTIMATORS: tuple[Estimator, ...] = ("grpo", "dr_grpo", "rloo", "reinforce++")
# The first group is whole (mean 1.5); of the second, one is unknown (mean 2 of 1, 2, 3).
REWARDS = torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, NAN, 2.0, 3.0]], dtype=torch.float64)


def _near(found: torch.Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=1e-12, atol=1e-12)


def test_dr_grpo_takes_the_mean_off() -> None:
    _near(group_advantages(REWARDS, "dr_grpo"), [[-1.5, -0.5, 0.5, 1.5], [-1.0, 0.0, 0.0, 1.0]])


def test_grpo_divides_by_the_deviation_of_what_is_known() -> None:
    # Variances with Bessel's correction: (2.25 + 0.25) * 2 / 3 = 5 / 3, and (1 + 0 + 1) / 2 = 1.
    upper, lower = math.sqrt(5 / 3) + 1e-4, 1 + 1e-4
    expected = [[-1.5 / upper, -0.5 / upper, 0.5 / upper, 1.5 / upper], [-1 / lower, 0.0, 0.0, 1 / lower]]
    _near(group_advantages(REWARDS, "grpo"), expected)


def test_rloo_takes_the_mean_of_the_others_off() -> None:
    # 0 - (1+2+3)/3 = -2, 1 - 5/3, 2 - 4/3, 3 - 1; then 1 - 5/2, unknown, 2 - 2, 3 - 3/2.
    _near(group_advantages(REWARDS, "rloo"), [[-2.0, -2 / 3, 2 / 3, 2.0], [-1.5, 0.0, 0.0, 1.5]])


def test_reinforce_takes_the_whole_batch_as_one_group() -> None:
    # 0 1 2 3 1 2 3: sum 12, mean 12/7, squares 28; variance (28 - 144/7) / 6 = 52/42.
    deviation = math.sqrt(52 / 42) + 1e-4
    known = [[(r - 12 / 7) / deviation for r in row] for row in ([0, 1, 2, 3], [1, 12 / 7, 2, 3])]
    _near(group_advantages(REWARDS, "reinforce++"), known)


def test_grpo_is_what_trl_makes_of_the_same_rewards() -> None:
    trl_utils = pytest.importorskip("trl.trainer.utils")
    rewards = torch.randn(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rewards[torch.rand(50, 6, generator=torch.Generator().manual_seed(2)) < 0.2] = NAN
    rewards[0] = NAN
    rewards[1, 1:] = NAN  # a single known one
    centred = rewards - torch.nanmean(rewards, dim=1, keepdim=True)
    trl = torch.nan_to_num(centred / (trl_utils.nanstd(rewards, dim=1, keepdim=True) + 1e-4), nan=0.0)
    torch.testing.assert_close(group_advantages(rewards, "grpo"), trl)
    assert EPSILON == 1e-4


def test_rloo_is_the_literal_mean_of_the_others() -> None:
    rewards = torch.randn(20, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    literal = torch.stack(
        [rewards[:, i] - torch.cat([rewards[:, :i], rewards[:, i + 1 :]], dim=1).mean(1) for i in range(5)], dim=1
    )
    torch.testing.assert_close(group_advantages(rewards, "rloo"), literal)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_cannot_be_compared_gets_no_advantage(estimator: Estimator) -> None:
    rewards = torch.tensor([[NAN, NAN, NAN], [NAN, 5.0, NAN]])
    assert group_advantages(rewards, estimator).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_rewards_give_no_advantage(estimator: Estimator) -> None:
    for reward in (0.1, 1000.1):
        assert group_advantages(torch.full((2, 7), reward), estimator).tolist() == [[0.0] * 7] * 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_infinite_reward_is_unknown(estimator: Estimator) -> None:
    # A sum of finite rewards may leave the range of float32 on its way to the log.
    rewards = torch.tensor([[0.0, 1.0, math.inf, -math.inf], [0.0, 1.0, NAN, NAN]])
    advantages = group_advantages(rewards, estimator)
    assert torch.isfinite(advantages).all()
    assert advantages[0].tolist() == advantages[1].tolist()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_shape_and_number_type_stay(estimator: Estimator) -> None:
    advantages = group_advantages(torch.rand(3, 5), estimator)
    assert advantages.shape == (3, 5)
    assert advantages.dtype == torch.float32


def test_which_groups_are_equal() -> None:
    rewards = torch.tensor(
        [[1.0, 1.0, 1.0], [1.0, NAN, 1.0], [1.0, NAN, 2.0], [NAN, NAN, 3.0], [NAN, NAN, NAN], [0.0, 0.0, 1e-6]]
    )
    assert equal_groups(rewards).tolist() == [True, True, False, True, True, False]
    assert equal_groups(torch.tensor([[math.inf, 1.0, 1.0], [math.inf, 1.0, 2.0]])).tolist() == [True, False]
    assert equal_groups(torch.tensor([[1.0], [NAN]])).tolist() == [True, True]  # nobody to compare with

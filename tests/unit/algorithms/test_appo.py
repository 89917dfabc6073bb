"""The APPO loss by hand: clipping, masking, its parts and its gradient."""

import math

import pytest
import torch

from offbeat.algorithms.appo import AppoLoss, appo_loss


def loss(log_ratios: torch.Tensor, advantages: list[float], weights: list[float] | None = None, **changes) -> AppoLoss:
    count = len(advantages)
    given = {
        "values": torch.zeros(count),
        "targets": torch.zeros(count),
        "entropies": torch.zeros(count),
        "clip_ratio": 0.2,
        "value_coef": 0.5,
        "entropy_coef": 0.01,
    }
    mask = torch.tensor(weights or [1.0] * count)
    return appo_loss(log_ratios=log_ratios, advantages=torch.tensor(advantages), weights=mask, **{**given, **changes})


def test_surrogate_is_clipped_only_where_it_would_gain():
    # ratio 1.5: A = 1 gives min(1.5, 1.2) = 1.2; A = -1 gives min(-1.5, -1.2) = -1.5. ratio 0.5: A = 1 gives 0.5.
    ratios = torch.tensor([1.5, 1.5, 0.5])
    made = loss(ratios.log(), [1.0, -1.0, 1.0])
    assert made.policy.item() == pytest.approx(-(1.2 - 1.5 + 0.5) / 3)
    assert made.clip_fraction.item() == 1.0


def test_clipped_slots_have_no_gradient():
    log_ratios = torch.tensor([math.log(1.5), 0.0], requires_grad=True)
    loss(log_ratios, [1.0, 1.0]).total.backward()
    assert log_ratios.grad is not None
    assert log_ratios.grad.tolist() == [0.0, -0.5]


def test_parts_add_up_and_masked_slots_count_for_nothing():
    made = loss(
        torch.zeros(3),
        [1.0, 2.0, 999.0],
        [1.0, 1.0, 0.0],
        values=torch.tensor([1.0, 3.0, 999.0]),
        targets=torch.tensor([0.0, 1.0, 0.0]),
        entropies=torch.tensor([0.2, 0.4, 999.0]),
    )
    assert made.policy.item() == pytest.approx(-1.5)
    assert made.value.item() == pytest.approx(0.5 * (1 + 4) / 2)
    assert made.entropy.item() == pytest.approx(0.3)
    assert made.total.item() == pytest.approx(-1.5 + 0.5 * 1.25 - 0.01 * 0.3)


def test_approx_kl_is_zero_for_equal_policies_and_positive_else():
    assert loss(torch.zeros(2), [1.0, 1.0]).approx_kl.item() == 0.0
    # ratio 2: 2 - 1 - log 2
    assert loss(torch.full((2,), math.log(2.0)), [1.0, 1.0]).approx_kl.item() == pytest.approx(1 - math.log(2))


def test_an_overflowing_ratio_stays_finite():
    log_ratios = torch.tensor([300.0], requires_grad=True)
    made = loss(log_ratios, [-1.0])
    made.total.backward()
    assert torch.isfinite(made.total)
    assert torch.isfinite(log_ratios.grad).all()

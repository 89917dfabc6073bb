"""GAE and V-trace against numbers worked out by hand and an independent sum over all later slots."""

import numpy as np
import pytest
import torch

from offbeat.algorithms.returns import Estimates, gae, vtrace


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def arguments(length: int, rows: int, seed: int, *, cut_share: float = 0.2) -> dict[str, torch.Tensor]:
    """Random unrolls with terminations and other cuts in the middle, time-major."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((length, rows)) < cut_share / 2
    cuts = terminated | (rng.random((length, rows)) < cut_share / 2)
    values = rng.normal(size=(length + 1, rows))
    next_values = np.where(cuts, rng.normal(size=(length, rows)), values[1:])
    return {
        "rewards": tensor(rng.normal(size=(length, rows))),
        "discounts": tensor(np.where(terminated, 0.0, 0.9)),
        "cuts": torch.tensor(cuts),
        "values": tensor(values[:-1]),
        "next_values": tensor(next_values),
    }


def slow_vtrace(given: dict[str, torch.Tensor], log_ratios: torch.Tensor, lam: float, rho_bar: float, c_bar: float):
    """The sum form of the paper, slot by slot: v_s = V_s + sum_t (prod_{i<t} gamma c_i) rho_t delta_t."""
    r, g, cut, v, nv = (given[k].double().numpy() for k in ("rewards", "discounts", "cuts", "values", "next_values"))
    ratio = np.exp(log_ratios.double().numpy())
    delta = r + g * nv - v
    targets, advantages = np.zeros_like(v), np.zeros_like(v)
    for n in range(v.shape[1]):
        for s in range(len(v)):
            total, weight, later = 0.0, 1.0, 0.0
            for t in range(s, len(v)):
                term = weight * min(rho_bar, ratio[t, n]) * delta[t, n]
                total += term
                if t > s:
                    later += term / min(c_bar, ratio[s, n])
                if cut[t, n]:
                    break
                weight *= g[t, n] * lam * min(c_bar, ratio[t, n])
            targets[s, n] = v[s, n] + total
            advantages[s, n] = delta[s, n] + later
    return targets, advantages


def test_gae_of_three_steps_by_hand():
    # deltas: 1 + .5*2 - 1 = 1;  0 + .5*4 - 2 = 0;  2 + .5*6 - 4 = 1.  gamma lambda = .25
    # A2 = 1; A1 = 0 + .25 = .25; A0 = 1 + .0625
    made = gae(
        rewards=tensor([1, 0, 2]),
        discounts=tensor([0.5, 0.5, 0.5]),
        cuts=torch.tensor([False, False, False]),
        values=tensor([1, 2, 4]),
        next_values=tensor([2, 4, 6]),
        trace_lambda=0.5,
    )
    assert made.advantages.tolist() == [1.0625, 0.25, 1.0]
    assert made.targets.tolist() == [2.0625, 2.25, 5.0]


def test_gae_cut_by_a_termination_and_by_a_truncation_by_hand():
    # slot 0 terminates: A0 = 1 + 0 - 1 = 0. slot 1 truncates with V(final) = 10: A1 = 0 + .5*10 - 2 = 3.
    made = gae(
        rewards=tensor([1, 0, 2]),
        discounts=tensor([0.0, 0.5, 0.5]),
        cuts=torch.tensor([True, True, False]),
        values=tensor([1, 2, 4]),
        next_values=tensor([7, 10, 6]),
        trace_lambda=0.5,
    )
    assert made.advantages.tolist() == [0.0, 3.0, 1.0]


def test_vtrace_by_hand():
    # ratios .5, 4 (cut to 1 in rho and to 2 in c): gamma .5, lambda 1, deltas 1, 0, 1 as in the first test.
    # x2 = 1*1; x1 = 1*0 + .5*2*1 = 1; x0 = .5*1 + .5*.5*1 = .75
    made = vtrace(
        rewards=tensor([1, 0, 2]),
        discounts=tensor([0.5, 0.5, 0.5]),
        cuts=torch.tensor([False, False, False]),
        values=tensor([1, 2, 4]),
        next_values=tensor([2, 4, 6]),
        log_ratios=tensor([0.5, 4.0, 1.0]).log(),
        trace_lambda=1.0,
        rho_bar=1.0,
        c_bar=2.0,
    )
    assert made.targets.tolist() == pytest.approx([1.75, 3.0, 5.0])
    # A0 = 1 + .5*3 - 1; A1 = 0 + .5*5 - 2; A2 = 2 + .5*6 - 4
    assert made.advantages.tolist() == pytest.approx([1.5, 0.5, 1.0])


@pytest.mark.parametrize(
    ("lam", "rho_bar", "c_bar"), [(1.0, 1.0, 1.0), (0.9, 1.0, 1.0), (0.95, 2.0, 1.5), (0.0, 1.0, 1.0)]
)
def test_vtrace_agrees_with_the_sum_form(lam: float, rho_bar: float, c_bar: float):
    given = arguments(13, 7, seed=1)
    log_ratios = tensor(np.random.default_rng(2).normal(scale=0.7, size=(13, 7)))
    made = vtrace(**given, log_ratios=log_ratios, trace_lambda=lam, rho_bar=rho_bar, c_bar=c_bar)
    targets, advantages = slow_vtrace(given, log_ratios, lam, rho_bar, c_bar)
    np.testing.assert_allclose(made.targets.numpy(), targets, rtol=2e-5, atol=2e-5)
    # Both are r + g (lambda v_next + (1 - lambda) V_next) - V.
    np.testing.assert_allclose(made.advantages.numpy(), advantages, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_on_policy_vtrace_is_gae(lam: float):
    given = arguments(20, 5, seed=3)
    on_policy = vtrace(**given, log_ratios=torch.zeros(20, 5), trace_lambda=lam, rho_bar=1.0, c_bar=1.0)
    expected = gae(**given, trace_lambda=lam)
    torch.testing.assert_close(on_policy.targets, expected.targets)
    torch.testing.assert_close(on_policy.advantages, expected.advantages)


@pytest.mark.parametrize("correction", ["gae", "vtrace"])
def test_nothing_flows_back_over_a_cut(correction: str):
    given = arguments(10, 3, seed=4, cut_share=0.0)
    given["cuts"][5] = True
    changed = {name: value.clone() for name, value in given.items()}
    for name in ("rewards", "values", "next_values"):
        changed[name][6:] += 100.0

    def estimate(arrays: dict[str, torch.Tensor], log_ratios: torch.Tensor) -> Estimates:
        if correction == "gae":
            return gae(**arrays, trace_lambda=0.95)
        return vtrace(**arrays, log_ratios=log_ratios, trace_lambda=0.95, rho_bar=1.0, c_bar=1.0)

    ratios = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    other = torch.cat([ratios[:6], ratios[6:] + 1.0])
    before, after = estimate(given, ratios), estimate(changed, other)
    assert torch.equal(before.targets[:6], after.targets[:6])
    assert torch.equal(before.advantages[:6], after.advantages[:6])
    assert not torch.equal(before.targets[6:], after.targets[6:])


def test_wild_ratios_stay_finite():
    given = arguments(6, 2, seed=5)
    made = vtrace(**given, log_ratios=torch.full((6, 2), 200.0), trace_lambda=1.0, rho_bar=1.0, c_bar=1.0)
    assert torch.isfinite(made.targets).all()

"""Value targets and advantages of unrolls: GAE (on-policy) and V-trace (off-policy), batched over all but time.

Both are one backward recursion over time, x_t = d_t + k_t x_{t+1}, where k_t = 0 cuts the trace. All tensors are
time-major, [T, ...], float32. The caller says, slot by slot:

    discounts    gamma, or 0 where the episode terminated (nothing to bootstrap from)
    cuts         True where nothing flows back from slot t + 1: every done, and slots that are not trained on
    next_values  V of the state that followed slot t, the true final one at a truncation
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """targets: what values are regressed to. advantages: of the actions taken. Both [T, ...]."""

    targets: Tensor
    advantages: Tensor


def gae(
    *, rewards: Tensor, discounts: Tensor, cuts: Tensor, values: Tensor, next_values: Tensor, trace_lambda: float
) -> Estimates:
    """Generalised advantage estimation (Schulman 2016, eq. 16).

    advantages A_t = sum_k (gamma lambda)^k delta_{t+k}; targets A_t + V_t.
    """
    deltas = rewards + discounts * next_values - values
    advantages = _accumulate(deltas, _decays(discounts, cuts, trace_lambda))[:-1]
    return Estimates(targets=values + advantages, advantages=advantages)


def vtrace(
    *,
    rewards: Tensor,
    discounts: Tensor,
    cuts: Tensor,
    values: Tensor,
    next_values: Tensor,
    log_ratios: Tensor,
    trace_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> Estimates:
    """V-trace (Espeholt 2018, eq. 1), c_t = lambda min(c_bar, rho_t); rho_t = exp(log_ratios), target over behaviour.

    targets v_t = V_t + min(rho_bar, rho_t) delta_t + g_t c_t (v_{t+1} - V_{t+1}). advantages r_t + g_t q_{t+1} - V_t
    with q = lambda v + (1 - lambda) V: the paper's at lambda = 1, GAE's on-policy. They do not hold the weight rho_t;
    a plain policy gradient multiplies by min(rho_bar, rho_t), a surrogate of the ratio to the behaviour policy has it.
    """
    ratios = log_ratios.exp()
    deltas = rewards + discounts * next_values - values
    decays = _decays(discounts, cuts, trace_lambda)
    corrections = _accumulate(ratios.clamp(max=rho_bar) * deltas, decays * ratios.clamp(max=c_bar))
    return Estimates(targets=values + corrections[:-1], advantages=deltas + decays * corrections[1:])


def _decays(discounts: Tensor, cuts: Tensor, trace_lambda: float) -> Tensor:
    return (discounts * trace_lambda).masked_fill(cuts, 0.0)


def _accumulate(terms: Tensor, decays: Tensor) -> Tensor:
    """x_t = terms_t + decays_t x_{t+1} with x_T = 0, as [T + 1, ...]."""
    sums = torch.zeros((len(terms) + 1, *terms.shape[1:]), dtype=terms.dtype, device=terms.device)
    for t in range(len(terms) - 1, -1, -1):
        torch.addcmul(terms[t], decays[t], sums[t + 1], out=sums[t])
    return sums

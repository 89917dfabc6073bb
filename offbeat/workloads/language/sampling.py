"""From logits to a token, and to the log-probability that it was really sampled with.

    logits / temperature ──> top-k ──> top-p ──> min-p ──> renormalised log-probs ──> token

The generator records these log-probs, and the check of recorded log-probs makes them anew, through the same function.
"""

import torch
from torch import Tensor

from offbeat.config.language import SamplingConfig


def sampling_logprobs(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Log-probs [..., V] in float32 of the distribution that is sampled from; -inf for what it leaves out."""
    scaled = logits.float() / config.temperature
    if 0 < config.top_k < scaled.shape[-1]:
        least = scaled.topk(config.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if config.top_p < 1:
        scaled = _without_tail(scaled, config.top_p)
    if config.min_p > 0:
        probabilities = scaled.softmax(-1)
        least = probabilities.amax(-1, keepdim=True) * config.min_p
        scaled = scaled.masked_fill(probabilities < least, -torch.inf)
    return scaled.log_softmax(-1)


def sample(logprobs: Tensor, generator: torch.Generator) -> Tensor:
    """One token [N] for each row of log-probs [N, V]."""
    return torch.multinomial(logprobs.exp(), 1, generator=generator).squeeze(-1)


def _without_tail(scaled: Tensor, top_p: float) -> Tensor:
    """Keep the fewest likeliest tokens whose probabilities reach `top_p` (Holtzman 2020), always one at least."""
    ordered, places = scaled.sort(-1, descending=True)
    probabilities = ordered.softmax(-1)
    # Left out is what comes after the sum before it has reached the bound.
    beyond = probabilities.cumsum(-1) - probabilities >= top_p
    return scaled.masked_fill(torch.zeros_like(beyond).scatter(-1, places, beyond), -torch.inf)

"""The learning policy as if one process held it: its parameters, and what its sampler would say of tokens.

Where the model is cut among the team's processes, each of these is done by all of them together, at process 0's order.
"""

from collections.abc import Sequence

import numpy as np

from offbeat.config.language import SamplingConfig
from offbeat.workloads.base import Weights
from offbeat.workloads.language.batches import Completions
from offbeat.workloads.language.checks import score_tokens
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.team import Order, Team
from offbeat.workloads.language.updates import Updater


class WholePolicy:
    """Process 0's view; see `offbeat.workloads.language.checks.Scorable`."""

    def __init__(self, policy: LanguagePolicy, updater: Updater, team: Team) -> None:
        self._policy, self._updater, self._team = policy, updater, team

    def weights(self) -> Weights:
        """The trained parameters, as CPU clones."""
        if self._updater.sharded:
            self._team.tell(Order.PARAMETERS)
        return self._policy.weights()

    def load_weights(self, weights: Weights) -> None:
        """Take over parameters."""
        if self._updater.sharded:
            self._team.tell(Order.LOAD)
            self._team.spread(dict(weights), {})
        self._policy.load_weights(weights)

    def score(self, rows: Completions, sampling: SamplingConfig) -> Sequence[np.ndarray]:
        """Log-probs of the written tokens under the distribution that a sampler of these settings draws from."""
        if self._updater.sharded:
            self._team.tell(Order.SCORE)
            self._team.scatter([(rows, sampling)] * self._team.size)
        return score_tokens(self._policy, rows, sampling, max_tokens=self._updater.micro_batch_tokens)

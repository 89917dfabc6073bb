"""Groups of completions on their way to their rewards, in a thread that waits so that writing need not."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.rewards import RewardCombiner, RewardProcess, RewardTable
from offbeat.workloads.language.engine import Completion
from offbeat.workloads.language.prompts import Prompt, columns_of, completions_as_given


@dataclass(slots=True, kw_only=True)
class Group:
    """One prompt's completions. Scored: `rewards` float64 [G, F], and their combination `reward` [G]."""

    number: int
    prompt: Prompt
    size: int
    completions: list[Completion] = field(default_factory=list)
    finished_at_ns: int = 0
    version: int = 0  # at its end
    rewards: np.ndarray[Any, np.dtype[np.float64]] | None = None
    reward: np.ndarray[Any, np.dtype[np.float64]] | None = None

    @property
    def whole(self) -> bool:
        """Whether every completion is written."""
        return len(self.completions) == self.size


class Scorer:
    """Scores groups in the order they come. `faults` counts lost rewards by kind."""

    def __init__(self, rewards: RewardProcess, combine: RewardCombiner, tokenizer: Any) -> None:
        self.faults: Counter[str] = Counter()
        self._rewards = rewards
        self._combine = combine
        self._tokenizer = tokenizer
        self._waiting: list[Group] = []
        self._running: Future[RewardTable] | None = None
        self._asked: list[Group] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")

    @property
    def num_groups(self) -> int:
        """Groups that are not scored yet."""
        return len(self._waiting) + len(self._asked)

    def submit(self, groups: Sequence[Group]) -> None:
        """Take up whole groups."""
        self._waiting.extend(groups)

    def take(self, *, wait: bool) -> list[Group]:
        """Groups that have been scored since the last call; `wait` for some, if any are under way."""
        taken: list[Group] = []
        while True:
            running = self._running or self._ask()
            if running is None or not (running.done() or (wait and not taken)):
                return taken
            taken += self._scored(running.result())

    def forget(self) -> None:
        """Drop every group; what the rewards still work on is ignored."""
        if self._running is not None:
            self._running.cancel()
        self._waiting, self._asked, self._running = [], [], None

    def close(self) -> None:
        """End the rewards' process."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._rewards.close()

    def _ask(self) -> Future[RewardTable] | None:
        """Everything that waits goes to the rewards as one batch."""
        if self._waiting:
            self._asked, self._waiting = self._waiting, []
            self._running = self._thread.submit(self._score, list(self._asked))
        return self._running

    def _score(self, groups: Sequence[Group]) -> RewardTable:
        prompts = [group.prompt for group in groups for _ in group.completions]
        ids = [completion.ids for group in groups for completion in group.completions]
        return self._rewards.score(
            prompts=[prompt.given for prompt in prompts],
            completions=completions_as_given(self._tokenizer, prompts, ids),
            completion_ids=ids,
            columns=columns_of(prompts),
        )

    def _scored(self, table: RewardTable) -> list[Group]:
        self.faults.update(table.faults)
        reward, begin = self._combine(table.values), 0
        for group in self._asked:
            end = begin + group.size
            group.rewards, group.reward = table.values[begin:end], reward[begin:end]
            begin = end
        scored, self._asked, self._running = self._asked, [], None
        return scored

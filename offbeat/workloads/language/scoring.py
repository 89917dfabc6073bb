"""Groups of completions on their way to their rewards, in threads that wait so that writing need not."""

from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.rewards import RewardCombiner, RewardProcess, RewardTable
from offbeat.workloads.language.engine import Completion
from offbeat.workloads.language.prompts import Prompt, columns_of, completions_as_given

MAX_ASKS = 64  # Each one waits in a thread.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A batch that the rewards work on."""

    groups: Sequence[Group]
    table: Future[RewardTable]


class Scorer:
    """Scores groups, and gives them back in the order they came. `faults` counts lost rewards by kind.

    Where rewards overlap (async ones) up to MAX_ASKS batches are under way at once; otherwise one, and what comes
    meanwhile makes the next.
    """

    def __init__(self, rewards: RewardProcess, combine: RewardCombiner, tokenizer: Any) -> None:
        self.faults: Counter[str] = Counter()
        self._rewards = rewards
        self._combine = combine
        self._tokenizer = tokenizer
        self._waiting: list[Group] = []
        self._asked: deque[_Asked] = deque()
        self._threads = ThreadPoolExecutor(max_workers=MAX_ASKS, thread_name_prefix="scorer")

    @property
    def num_groups(self) -> int:
        """Groups that are not scored yet."""
        return len(self._waiting) + sum(len(asked.groups) for asked in self._asked)

    def submit(self, groups: Sequence[Group]) -> None:
        """Take up whole groups."""
        self._waiting.extend(groups)

    def take(self, *, wait: bool) -> list[Group]:
        """Groups that have been scored since the last call; `wait` for some, if any are under way."""
        taken: list[Group] = []
        while True:
            self._ask()
            if not self._asked or not (self._asked[0].table.done() or (wait and not taken)):
                return taken
            taken += self._scored(self._asked[0].groups, self._asked[0].table.result())
            self._asked.popleft()

    def forget(self) -> None:
        """Drop every group; what the rewards still work on is ignored."""
        for asked in self._asked:
            asked.table.cancel()
        self._waiting = []
        self._asked.clear()

    def close(self) -> None:
        """End the rewards' process."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._rewards.close()

    def _ask(self) -> None:
        """Everything that waits goes to the rewards as one batch, where they take one now."""
        if self._waiting and len(self._asked) < (MAX_ASKS if self._rewards.overlaps else 1):
            groups, self._waiting = self._waiting, []
            self._asked.append(_Asked(groups=groups, table=self._threads.submit(self._score, groups)))

    def _score(self, groups: Sequence[Group]) -> RewardTable:
        prompts = [group.prompt for group in groups for _ in group.completions]
        ids = [completion.ids for group in groups for completion in group.completions]
        return self._rewards.score(
            prompts=[prompt.given for prompt in prompts],
            completions=completions_as_given(self._tokenizer, prompts, ids),
            completion_ids=ids,
            columns=columns_of(prompts),
        )

    def _scored(self, groups: Sequence[Group], table: RewardTable) -> Sequence[Group]:
        self.faults.update(table.faults)
        reward, begin = self._combine(table.values), 0
        for group in groups:
            end = begin + group.size
            group.rewards, group.reward = table.values[begin:end], reward[begin:end]
            begin = end
        return groups

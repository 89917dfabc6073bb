"""The language rollout: prompts in, groups of scored completions out.

    prompts ──> engine ──> whole groups ──> scorer (rewards) ──> TrajectoryBatch
                  ▲ new weights: between decoding steps (in-flight updates), or when no sequence runs

While rewards are waited for, the next prompts are already being written, as far ahead as `ahead` allows. Groups are
handed over in the order in which they were written, so that none gets old behind others that were begun later.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from offbeat.config.language import LanguageConfig
from offbeat.errors import WorkloadError
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.base import Policy
from offbeat.workloads.language.engine import Engine, Request
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.prompts import Prompt
from offbeat.workloads.language.scoring import Group, Scorer

WAITED_SHARE = 0.05  # Of a collect's time: waiting longer for rewards makes the rollout reach further ahead.


class LanguageRollout:
    """Writes and scores completions. Owned by one generator.

    ahead: groups that may be under way beyond those that the next `collect` returns, where rewards are slow.
    """

    def __init__(
        self,
        config: LanguageConfig,
        prompts: Sequence[Prompt],
        schema: pa.Schema,
        *,
        engine: Engine,
        scorer: Scorer,
        seed: int,
        ahead: int,
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._schema = schema
        self._engine = engine
        self._scorer = scorer
        self._random = np.random.default_rng(seed)
        self._ahead = ahead
        self._reach = config.num_groups  # Groups that may be under way in the next `collect`.
        self._order: list[int] = []
        self._writing: dict[int, Group] = {}
        self._ready: list[Group] = []
        self._next_number = 0

    @property
    def num_trajectories(self) -> int:
        """Completions that admission is asked for: what the next `collect` returns, and what is begun beyond that."""
        return self._reach * self._config.group_size

    @property
    def faults(self) -> dict[str, int]:
        """Rewards lost so far, by kind."""
        return dict(self._scorer.faults)

    def collect(
        self, policy: Policy, version: int, newest: Callable[[], tuple[int, Policy]] | None = None
    ) -> TrajectoryBatch:
        """Write and score until `num_groups` groups are ready and, without in-flight updates, nothing is half written.

        newest: the newest version and its policy, asked where the configuration lets new weights in. Raises
        WorkloadError when the engine fails; the next call then starts with fresh prompts.
        """
        begun_at, waited_s, first = time.monotonic(), 0.0, True
        try:
            while first or self._num_missing > 0 or (self._writing and not self._config.in_flight_updates):
                begun, first = self._start_groups(), False
                if newest is not None and (self._config.in_flight_updates or begun):
                    version, policy = newest()
                self._write(cast(LanguagePolicy, policy), version)
                waited_s += self._take_scored()
        except (RuntimeError, ValueError, IndexError) as error:
            self._forget()
            raise WorkloadError(f"writing completions failed: {type(error).__name__}: {error}") from error
        self._adapt_reach(waited_s / max(1e-9, time.monotonic() - begun_at))
        taken, self._ready = self._ready[: self._config.num_groups], self._ready[self._config.num_groups :]
        return self._batch(taken)

    def close(self) -> None:
        """End the rewards' process."""
        self._scorer.close()

    @property
    def _num_missing(self) -> int:
        return self._config.num_groups - len(self._ready)

    @property
    def _num_begun(self) -> int:
        """Groups that are being written, wait for rewards, or have them."""
        return len(self._writing) + self._scorer.num_groups + len(self._ready)

    @property
    def _num_room(self) -> int:
        """Groups that may be begun now: within what was asked for, and no more than are handed over at once."""
        return min(self._config.num_groups, self._reach - self._num_begun)

    def _take_scored(self) -> float:
        """Take what has its rewards, and wait for some where there is nothing else to do; returns seconds waited."""
        begun_at = time.monotonic()
        wait = self._num_missing > 0 and self._num_room <= 0 and not self._writing
        self._ready += self._scorer.take(wait=wait)
        return time.monotonic() - begun_at if wait else 0.0

    def _adapt_reach(self, waited_share: float) -> None:
        """Slow rewards make it reach further, up to `ahead`; fast ones leave nothing to be ahead of."""
        further = 2 * self._reach if waited_share > WAITED_SHARE else self._reach - 1
        self._reach = min(max(further, self._config.num_groups), self._config.num_groups + self._ahead)

    def _start_groups(self) -> bool:
        """Keep enough groups under way; whether all that is written now has just been begun."""
        begun = not self._writing
        if not begun and not self._config.in_flight_updates:
            return False  # New prompts wait until these weights have finished what they began.
        for _ in range(self._num_room):
            group = Group(number=self._next_number, prompt=self._next_prompt(), size=self._config.group_size)
            self._writing[group.number] = group
            self._next_number += 1
            self._engine.submit([Request(key=group.number, ids=group.prompt.ids)] * group.size)
        return begun

    def _next_prompt(self) -> Prompt:
        if not self._order:
            self._order = self._random.permutation(len(self._prompts)).tolist()
        return self._prompts[self._order.pop()]

    def _write(self, policy: LanguagePolicy, version: int) -> None:
        for completion in self._engine.advance(policy, version):
            group = self._writing[completion.key]
            group.completions.append(completion)
            if group.whole:
                group.finished_at_ns, group.version = time.time_ns(), version
                self._scorer.submit([self._writing.pop(completion.key)])

    def _forget(self) -> None:
        self._engine.clear()
        self._scorer.forget()
        self._writing.clear()
        self._ready.clear()

    def _batch(self, groups: Sequence[Group]) -> TrajectoryBatch:
        rows = [(group, completion) for group in groups for completion in group.completions]
        spans = {group.number: _version_span(group) for group in groups}
        arrays: dict[str, Any] = {
            "min_version": [spans[group.number][0] for group, _ in rows],
            "max_version": [spans[group.number][1] for group, _ in rows],
            "finished_at_ns": [group.finished_at_ns for group, _ in rows],
            "group_id": [group.number for group, _ in rows],
            "group_size": [group.size for group, _ in rows],
            "prompt_index": [group.prompt.index for group, _ in rows],
            "prompt_ids": [group.prompt.ids for group, _ in rows],
            "completion_ids": [completion.ids for _, completion in rows],
            "logprobs": [completion.logprobs for _, completion in rows],
            "token_versions": [completion.versions for _, completion in rows],
            "finish": [completion.finish for _, completion in rows],
            "reward": np.concatenate([_known(group.reward) for group in groups]),
            "rewards": [row for group in groups for row in _known(group.rewards)],
        }
        return TrajectoryBatch.from_arrays(self._schema, arrays)


def _version_span(group: Group) -> tuple[int, int]:
    """Oldest and newest version of a whole group, so that a group is fresh or stale as one."""
    versions = [version for completion in group.completions for version in completion.versions]
    # A group without a token is as old as its end.
    return min(versions, default=group.version), max(versions, default=group.version)


def _known(array: np.ndarray[Any, np.dtype[np.float64]] | None) -> np.ndarray[Any, np.dtype[np.float64]]:
    if array is None:
        raise ValueError("a group without rewards was taken for ready")
    return array

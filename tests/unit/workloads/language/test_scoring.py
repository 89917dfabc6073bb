"""Groups on their way to their rewards: several batches at once where rewards overlap, given back in order."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from offbeat.rewards import RewardCombiner, RewardTable
from offbeat.workloads.language.engine import Completion
from offbeat.workloads.language.prompts import Prompt
from offbeat.workloads.language.scoring import Group, Scorer

DEADLINE_S = 20.0


class FakeTokenizer:
    def batch_decode(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        return [str(row[0]) for row in rows]


class GatedRewards:
    """A completion's reward is its text; a batch is answered once the gate of its first completion is open."""

    def __init__(self, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        self.gates = {str(number): threading.Event() for number in range(8)}
        self.inside: list[Sequence[str]] = []

    def score(self, *, completions: Sequence[str], **_: Any) -> RewardTable:
        self.inside.append(completions)
        if not self.gates[completions[0]].wait(DEADLINE_S):
            raise TimeoutError("the test did not open the gate")
        return RewardTable(values=np.array([[float(text)] for text in completions]), faults={"nan": 1})

    def close(self) -> None:
        for gate in self.gates.values():
            gate.set()


Made = Callable[..., tuple[Scorer, GatedRewards]]


@pytest.fixture
def made() -> Iterator[Made]:
    scorers: list[Scorer] = []

    def make(*, overlaps: bool) -> tuple[Scorer, GatedRewards]:
        rewards = GatedRewards(overlaps=overlaps)
        scorers.append(Scorer(rewards, RewardCombiner([1.0]), FakeTokenizer()))  # type: ignore[arg-type]
        return scorers[-1], rewards

    yield make
    for scorer in scorers:
        scorer.close()


def _group(number: int) -> Group:
    columns: Mapping[str, Any] = {}
    prompt = Prompt(index=number, given="p", ids=(1,), columns=columns)
    return Group(number=number, prompt=prompt, size=2, completions=[Completion(key=number, ids=[number])] * 2)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.001)


def _begin(scorer: Scorer, rewards: GatedRewards, count: int) -> None:
    """Submit groups 0 .. count - 1, each to be asked before the next comes, where that may be."""
    for number in range(count):
        scorer.submit([_group(number)])
        assert scorer.take(wait=False) == []
    _until(lambda: len(rewards.inside) == (count if rewards.overlaps else 1))


def test_overlapping_rewards_work_on_every_batch_at_once(made: Made) -> None:
    scorer, rewards = made(overlaps=True)
    _begin(scorer, rewards, 3)
    assert sorted(rewards.inside) == [["0", "0"], ["1", "1"], ["2", "2"]]
    assert scorer.num_groups == 3


def test_groups_come_back_in_the_order_in_which_they_went(made: Made) -> None:
    scorer, rewards = made(overlaps=True)
    _begin(scorer, rewards, 3)
    for number in (2, 1):
        rewards.gates[str(number)].set()
        _until(scorer._asked[number].table.done)
        assert scorer.take(wait=False) == []
    rewards.gates["0"].set()
    taken = [group for _ in range(3) for group in scorer.take(wait=True)]
    assert [group.number for group in taken] == [0, 1, 2]
    assert [group.reward.tolist() for group in taken if group.reward is not None] == [[0.0] * 2, [1.0] * 2, [2.0] * 2]
    assert scorer.num_groups == 0
    assert scorer.faults == {"nan": 3}


def test_other_rewards_get_one_batch_and_then_all_that_waited(made: Made) -> None:
    scorer, rewards = made(overlaps=False)
    _begin(scorer, rewards, 3)
    rewards.gates["0"].set()
    assert [group.number for group in scorer.take(wait=True)] == [0]
    rewards.gates["1"].set()
    assert [group.number for group in scorer.take(wait=True)] == [1, 2]
    assert rewards.inside == [["0"] * 2, ["1", "1", "2", "2"]]


def test_no_more_batches_than_threads_are_asked(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.workloads.language.scoring.MAX_ASKS", 2)
    scorer, rewards = made(overlaps=True)
    for number in range(4):
        scorer.submit([_group(number)])
        scorer.take(wait=False)
    _until(lambda: len(rewards.inside) == 2)
    assert scorer.num_groups == 4
    for gate in rewards.gates.values():
        gate.set()
    taken = [group.number for _ in range(3) for group in scorer.take(wait=True)]
    assert taken == [0, 1, 2, 3]
    assert sorted(rewards.inside) == [["0"] * 2, ["1"] * 2, ["2", "2", "3", "3"]]

"""A step's rows dealt to processes: each row once in every pass, and about as many tokens for each process."""

from typing import Any

import numpy as np
import pytest
import torch

from offbeat.workloads.language.batches import Completions
from offbeat.workloads.language.shares import deal
from tests.unit.workloads.language.small_models import run_config, sections

LENGTHS = [9, 1, 4, 7, 2, 8, 3, 6, 5]


def _rows() -> Completions:
    written = [np.full(length, row) for row, length in enumerate(LENGTHS)]
    return Completions(
        prompts=[np.zeros(1)] * len(LENGTHS),
        written=written,
        logprobs=[np.zeros(length) for length in LENGTHS],
        advantages=torch.arange(float(len(LENGTHS))),
    )


def _deal(num_shares: int, *, seed: int = 3, **algorithm: Any) -> list[list[list[int]]]:
    """The batch's row numbers, by share and minibatch."""
    _, grpo = sections(run_config(algorithm=algorithm))
    shares = deal(_rows(), grpo, seed=seed, learning_rate=0.5, num_shares=num_shares)
    assert {share.learning_rate for share in shares} == {0.5}
    for share in shares:
        assert [int(ids[0]) for ids in share.rows.written] == share.rows.advantages.int().tolist()
    return [[[int(share.rows.written[row][0]) for row in part.rows] for part in share.minibatches] for share in shares]


def test_one_share_is_everything_in_its_order() -> None:
    _, grpo = sections(run_config())
    (share,) = deal(_rows(), grpo, seed=0, learning_rate=1.0)
    assert [len(ids) for ids in share.rows.written] == LENGTHS
    (minibatch,) = share.minibatches
    assert sorted(minibatch.rows) == list(range(9))
    assert (minibatch.num_rows, minibatch.num_tokens) == (9, 45)


@pytest.mark.parametrize("num_shares", [1, 2, 3, 4])
def test_shares_add_up_to_the_minibatches_of_one_process(num_shares: int) -> None:
    whole = _deal(1, epochs=2, minibatches=2)[0]
    dealt = _deal(num_shares, epochs=2, minibatches=2)
    for place, minibatch in enumerate(whole):
        assert sorted(row for share in dealt for row in share[place]) == sorted(minibatch)


def test_minibatches_say_what_all_processes_have_in_them() -> None:
    _, grpo = sections(run_config(algorithm={"minibatches": 2}))
    first, second = deal(_rows(), grpo, seed=1, learning_rate=1.0, num_shares=2)
    numbers = [(part.num_rows, part.num_tokens) for part in first.minibatches]
    assert numbers == [(part.num_rows, part.num_tokens) for part in second.minibatches]
    assert [sum(column) for column in zip(*numbers, strict=True)] == [9, 45]


def test_tokens_are_dealt_evenly() -> None:
    # By length 9 8 7 6 5 4 3 2 1 and a prompt token each, there and back: 9 6 5 2 1 against 8 7 4 3.
    shares = _deal(2)
    assert [sorted((LENGTHS[row] for row in share[0]), reverse=True) for share in shares] == [
        [9, 6, 5, 2, 1],
        [8, 7, 4, 3],
    ]


def test_more_processes_than_rows_leave_some_with_nothing() -> None:
    shares = _deal(12)
    assert sum(not share[0] for share in shares) == 3

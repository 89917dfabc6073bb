"""How completions become padded tensors, and passes of a bounded size."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.workloads.language.batches import completions_of, micro_batches, rows_of
from tests.unit.workloads.language.small_models import make_batch

PROMPTS = [[1, 2], [1, 2], [3], [3]]
WRITTEN = [[5], [6, 7, 8], [], [9, 9]]
LOGPROBS = [[-1.0], [-2.0, -3.0, -4.0], [], [-5.0, -6.0]]
PAD = 0


def test_prompts_are_padded_on_the_left_and_completions_on_the_right() -> None:
    batch = make_batch(PROMPTS, WRITTEN, LOGPROBS, [0.0] * 4, group_size=2)
    rows = completions_of(batch, torch.tensor([1.0, -1.0, 2.0, -2.0]))
    assert (len(rows), rows.num_tokens, rows.lengths()) == (4, 6, [(2, 1), (2, 3), (1, 0), (1, 2)])
    tensors = rows.select([3, 0, 2]).padded(PAD, torch.device("cpu"))
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "prompt_ids": [[0, 3], [1, 2], [0, 3]],
        "prompt_mask": [[0, 1], [1, 1], [0, 1]],
        "completion_ids": [[9, 9], [5, 0], [0, 0]],
        "completion_mask": [[1, 1], [1, 0], [0, 0]],
        "behaviour_logprobs": [[-5.0, -6.0], [-1.0, 0.0], [0.0, 0.0]],
        "advantages": [-2.0, 1.0, 2.0],
    }
    assert tensors["prompt_ids"].dtype == tensors["completion_ids"].dtype == torch.int64


def test_a_slice_gives_its_own_rows() -> None:
    batch = make_batch(PROMPTS, WRITTEN, LOGPROBS, [0.0] * 4, group_size=2).slice(2, 4)
    assert [row.tolist() for row in rows_of(batch, "completion_ids")] == [[], [9, 9]]


def test_empty_completions_alone_have_one_column_that_counts_nothing() -> None:
    batch = make_batch([[1]], [[]], [[]], [0.0], group_size=1)
    tensors = completions_of(batch, torch.zeros(1)).padded(PAD, torch.device("cpu"))
    assert tensors["completion_mask"].tolist() == [[0]]


def test_rows_of_like_length_share_a_pass() -> None:
    assert micro_batches([(2, 8), (2, 2), (2, 8), (2, 2)], max_tokens=20) == [[1, 3], [0, 2]]
    assert micro_batches([(2, 2)] * 5, max_tokens=8) == [[0, 1], [2, 3], [4]]
    assert micro_batches([(100, 100)], max_tokens=16) == [[0]]  # one row at least
    assert micro_batches([], max_tokens=16) == []


LENGTHS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=40)


@given(lengths=LENGTHS, max_tokens=st.integers(16, 500))
@settings(max_examples=200, deadline=None)
def test_any_rows_are_each_in_one_pass_that_fits(lengths: Sequence[tuple[int, int]], max_tokens: int) -> None:
    passes = micro_batches(lengths, max_tokens)
    assert sorted(row for part in passes for row in part) == list(range(len(lengths)))
    for part in passes:
        widths = np.array([lengths[row] for row in part]).max(0)
        assert len(part) == 1 or len(part) * int(widths.sum()) <= max_tokens


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_selecting_twice_is_selecting_once(order: list[int]) -> None:
    rows = completions_of(make_batch(PROMPTS, WRITTEN, LOGPROBS, [0.0] * 4, group_size=2), torch.arange(4.0))
    again = rows.select(order).select([2, 0])
    assert [list(ids) for ids in again.written] == [WRITTEN[order[2]], WRITTEN[order[0]]]
    assert again.advantages.tolist() == [order[2], order[0]]

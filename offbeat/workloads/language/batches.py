"""A batch of completions as the learner's tensors, and how it is cut into passes that fit the memory.

Prompts are padded on the left and completions on the right, so that all completions begin in the same column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.trajectory import TrajectoryBatch

NDArray = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """N completions, unpadded: row i of `prompts` and `written` are token ids, of `logprobs` the behaviour's."""

    prompts: Sequence[NDArray]
    written: Sequence[NDArray]
    logprobs: Sequence[NDArray]
    advantages: Tensor  # [N]

    def __len__(self) -> int:
        return len(self.written)

    @property
    def num_tokens(self) -> int:
        """Written tokens."""
        return sum(map(len, self.written))

    def lengths(self) -> list[tuple[int, int]]:
        """Tokens of prompt and completion, row by row."""
        return [(len(prompt), len(written)) for prompt, written in zip(self.prompts, self.written, strict=True)]

    def select(self, rows: Sequence[int]) -> "Completions":
        """These rows alone, in this order."""
        return Completions(
            prompts=[self.prompts[row] for row in rows],
            written=[self.written[row] for row in rows],
            logprobs=[self.logprobs[row] for row in rows],
            advantages=self.advantages[list(rows)],
        )

    def padded(self, pad_id: int, device: torch.device) -> dict[str, Tensor]:
        """The tensors that TRL's loss reads, [N, P] and [N, C]; log-probs beyond a completion's end are 0."""
        prompt_ids, prompt_mask = _padded(self.prompts, pad_id, left=True)
        completion_ids, completion_mask = _padded(self.written, pad_id, left=False)
        logprobs = np.zeros(completion_ids.shape, dtype=np.float32)
        for row, values in enumerate(self.logprobs):
            logprobs[row, : len(values)] = values
        arrays = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "behaviour_logprobs": logprobs,
        }
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return {**tensors, "advantages": self.advantages.to(device)}


def completions_of(batch: TrajectoryBatch, advantages: Tensor) -> Completions:
    """The rows of a batch with their advantages [N]."""
    return Completions(
        prompts=rows_of(batch, "prompt_ids"),
        written=rows_of(batch, "completion_ids"),
        logprobs=rows_of(batch, "logprobs"),
        advantages=advantages,
    )


def rows_of(batch: TrajectoryBatch, name: str) -> list[NDArray]:
    """A ragged column, row by row."""
    values, offsets = batch.ragged(name)
    return np.split(values, offsets[1:-1])


def micro_batches(lengths: Sequence[tuple[int, int]], max_tokens: int) -> list[list[int]]:
    """Rows in passes of at most `max_tokens` padded tokens, one row at least; rows of like length go together."""
    order = sorted(range(len(lengths)), key=lambda row: (sum(lengths[row]), row))
    passes: list[list[int]] = []
    width_prompt = width_written = 0
    for row in order:
        prompt, written = max(width_prompt, lengths[row][0]), max(width_written, lengths[row][1])
        if passes and (len(passes[-1]) + 1) * (prompt + written) <= max_tokens:
            passes[-1].append(row)
            width_prompt, width_written = prompt, written
        else:
            passes.append([row])
            width_prompt, width_written = lengths[row]
    return passes


def _padded(rows: Sequence[NDArray], pad_id: int, *, left: bool) -> tuple[NDArray, NDArray]:
    width = max(1, *map(len, rows))
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for row, values in enumerate(rows):
        place = slice(width - len(values), width) if left else slice(0, len(values))
        ids[row, place], mask[row, place] = values, 1
    return ids, mask

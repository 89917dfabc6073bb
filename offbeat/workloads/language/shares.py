"""A step's work, dealt to the processes that learn as one.

    rows of the batch ──> minibatches of each pass (from the seed) ──> each process: its own rows in each of them

A row belongs to one process for the whole step. What a minibatch as a whole holds is said beside it, so that the
processes' gradients add up to the one that a single process would have had.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from offbeat.config.language import GrpoConfig
from offbeat.workloads.language.batches import Completions


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """One optimiser update. rows: places among the share's rows; the numbers are of the minibatch as a whole."""

    rows: Sequence[int]
    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process does in one step."""

    rows: Completions
    minibatches: Sequence[Minibatch]
    learning_rate: float


def deal(
    rows: Completions, algorithm: GrpoConfig, *, seed: int, learning_rate: float, num_shares: int = 1
) -> list[Share]:
    """Shares of about as many tokens each; with one, all rows in their order."""
    owners = _owners(rows, num_shares)
    places = {row: place for owned in owners for place, row in enumerate(owned)}
    drawn = _drawn(len(rows), algorithm, seed)
    lengths = [len(written) for written in rows.written]
    return [
        Share(
            rows=rows.select(owned),
            minibatches=[
                Minibatch(
                    rows=[places[row] for row in minibatch if row in mine],
                    num_rows=len(minibatch),
                    num_tokens=sum(lengths[row] for row in minibatch),
                )
                for minibatch in drawn
            ],
            learning_rate=learning_rate,
        )
        for owned in owners
        for mine in [frozenset(owned)]
    ]


def _owners(rows: Completions, num_shares: int) -> list[list[int]]:
    """The longest rows first, each to the process that comes next, there and back again."""
    lengths = rows.lengths()
    longest_first = sorted(range(len(rows)), key=lambda row: (-sum(lengths[row]), row))
    turn = [*range(num_shares), *reversed(range(num_shares))]
    owners: list[list[int]] = [[] for _ in range(num_shares)]
    for place, row in enumerate(longest_first):
        owners[turn[place % len(turn)]].append(row)
    return [sorted(owned) for owned in owners]


def _drawn(num_rows: int, algorithm: GrpoConfig, seed: int) -> list[list[int]]:
    """The rows of every minibatch of every pass."""
    generator = torch.Generator().manual_seed(seed)
    pieces = min(algorithm.minibatches, num_rows)
    orders = [torch.randperm(num_rows, generator=generator) for _ in range(algorithm.epochs)]
    return [part.tolist() for order in orders for part in torch.tensor_split(order, pieces)]

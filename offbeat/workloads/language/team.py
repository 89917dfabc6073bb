"""Several processes that learn as one: what they say to each other, and nothing of what they compute.

    process 0 (has the rows) ──order──> all      ──share──> each      <──measures── all      gradient: sum over all

Every process makes the same updates, of all parameters or of its piece of them, and process 0 alone reads the log and
writes checkpoints. What lies in main memory goes through gloo, what lies on a GPU through nccl. Processes trust each
other: what they exchange is pickled, as everywhere in torch.distributed.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from offbeat.errors import WorkloadError

T = TypeVar("T")
# A team waits for rows as long as its generators need. Who dies is noticed at once, by the closed connection, and who
# stands still by whoever supervises the trainer.
PATIENCE = timedelta(days=365)


class Order(enum.Enum):
    """What process 0 asks of the others."""

    LEARN = "learn"
    SCORE = "score"
    PARAMETERS = "parameters"
    STATE = "state"
    LOAD = "load"
    RESTORE = "restore"
    DIGEST = "digest"
    END = "end"


class Team:
    """The processes of a trainer as one of them sees it; alone, everything here costs nothing.

    Raises WorkloadError in every method when another process is gone.
    """

    rank, size = 0, 1

    def tell(self, order: Order) -> None:
        """From process 0: what comes next."""

    def hear(self) -> Order:
        """In the others: what comes next."""
        return Order.END

    def scatter(self, shares: Sequence[T] | None) -> T:
        """From process 0, one object to each; returns one's own."""
        if shares is None:
            raise ValueError("a team of one has nobody to get a share from")
        return shares[0]

    def gather(self, mine: T) -> list[T]:
        """What each process has, in process 0; the others get their own alone."""
        return [mine]

    def spread(
        self, tensors: dict[str, Tensor] | None, settings: Mapping[str, Any] | None
    ) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
        """Process 0's CPU tensors and settings, in all."""
        return dict(tensors or {}), settings or {}

    def all_agree(self, fine: bool) -> bool:
        """Whether all processes are fine."""
        return fine

    def most(self, number: int) -> int:
        """The largest number that any process has."""
        return number

    def add_up(self, parameters: Iterable[Tensor]) -> None:
        """Make every gradient the sum over all processes."""

    def close(self) -> None:
        """End the team, from process 0."""


class DistributedTeam(Team):
    """A team over torch.distributed, whose default group is there; owns that group.

    ended: what process 0 calls when the team is over, to wait for processes that it started.
    """

    def __init__(self, *, ended: Callable[[], None] = lambda: None) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._ended, self._open = ended, True

    def tell(self, order: Order) -> None:  # noqa: D102
        with _reported():
            dist.broadcast_object_list([order], src=0)

    def hear(self) -> Order:  # noqa: D102
        heard: list[Any] = [None]
        with _reported():
            dist.broadcast_object_list(heard, src=0)
        return Order(heard[0])

    def scatter(self, shares: Sequence[T] | None) -> T:  # noqa: D102
        got: list[Any] = [None]
        with _reported():
            dist.scatter_object_list(got, list(shares) if shares is not None else None, src=0)
        found: T = got[0]
        return found

    def gather(self, mine: T) -> list[T]:  # noqa: D102
        found: list[Any] = [None] * self.size
        with _reported():
            dist.gather_object(mine, found if self.rank == 0 else None, dst=0)
        return found if self.rank == 0 else [mine]

    def spread(  # noqa: D102
        self, tensors: dict[str, Tensor] | None, settings: Mapping[str, Any] | None
    ) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
        described = {name: (tuple(part.shape), part.dtype) for name, part in (tensors or {}).items()}
        said: list[Any] = [described, settings]
        with _reported():
            dist.broadcast_object_list(said, src=0)
            found = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in said[0].items()}
            for name, part in found.items():
                if tensors is not None:
                    part.copy_(tensors[name])
                dist.broadcast(part, src=0)
        return found, said[1]

    def all_agree(self, fine: bool) -> bool:  # noqa: D102
        answer = torch.tensor(int(fine))
        with _reported():
            dist.all_reduce(answer, op=dist.ReduceOp.MIN)
        return bool(answer)

    def most(self, number: int) -> int:  # noqa: D102
        answer = torch.tensor(number)
        with _reported():
            dist.all_reduce(answer, op=dist.ReduceOp.MAX)
        return int(answer)

    def add_up(self, parameters: Iterable[Tensor]) -> None:  # noqa: D102
        gradients = [_gradient(parameter) for parameter in parameters]
        with _reported():
            works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
            for work in works:
                work.wait()

    def close(self) -> None:  # noqa: D102
        if not self._open:
            return
        self._open = False
        # Whoever is gone needs not be told.
        with suppress(WorkloadError):
            if self.rank == 0:
                self.tell(Order.END)
        self._ended()
        dist.destroy_process_group()


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WorkloadError(f"a process of the trainer's team is gone ({said}); its own output says why") from error


def _gradient(parameter: Tensor) -> Tensor:
    # A process whose share holds no row of a minibatch adds nothing, but must take part.
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad

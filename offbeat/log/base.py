"""The durable log between generators and trainer: append, read from explicit positions, trim.

Reading never moves anything. A position belongs to its reader, who saves it where it pleases (the trainer in its
plan and checkpoints), so two readers never disturb each other and a resumed reader reads exactly what follows.

A run's log has three channels:

    trajectories   one partition per generator; what generators append and the trainer reads
    plan           one partition; what the trainer decided to train on, written before it trains
    quarantine     one partition; the bytes of every record that broke the contract, with the reason
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Channel = Literal["trajectories", "plan", "quarantine"]
CHANNELS: tuple[Channel, ...] = ("trajectories", "plan", "quarantine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record to append: headers (small strings, readable without the payload) and opaque payload bytes."""

    headers: Mapping[str, str]
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as read. `headers` is empty where the stored headers cannot be read at all.

    `position` grows along its partition, not always by one. `appended_at_ns` is the log's own clock (Unix ns).
    """

    channel: Channel
    partition: int
    position: int
    appended_at_ns: int
    headers: Mapping[str, str]
    payload: bytes


class Log(Protocol):
    """A partitioned, durable, append-only log.

    Every method may raise LogUnavailable, after which trying again may help, and LogDamaged, after which it cannot.
    """

    @property
    def num_partitions(self) -> int:
        """Partitions of the trajectories channel; the other channels have one."""

    @property
    def max_record_bytes(self) -> int:
        """Largest payload that `append` takes, in bytes."""

    def append(self, channel: Channel, partition: int, entries: Sequence[Entry]) -> int:
        """Append all entries, in order and durably, and return the position after the last.

        Raises RecordTooLarge before anything is written, LogUnavailable when nothing can be promised.
        """

    def read(
        self,
        channel: Channel,
        partition: int,
        position: int,
        *,
        max_records: int = 1024,
        max_bytes: int = 64 << 20,
        payloads: bool = True,
    ) -> list[Record]:
        """Records at and after `position`, oldest first; empty when there are none yet.

        At least one record comes back where there is one, whatever `max_bytes`. With `payloads=False` each payload
        is `b""`, where the backend can spare reading it. Raises PositionOutOfRange below `begin`, and LogDamaged where
        the log ends before `position`: who knows a position got it from a log that was longer.
        """

    def begin(self, channel: Channel, partition: int) -> int:
        """Position of the oldest record kept (equal to `end` when there is none)."""

    def end(self, channel: Channel, partition: int) -> int:
        """Position that the next append will get, or a smaller one beyond the last record."""

    def trim(self, channel: Channel, partition: int, before: int) -> None:
        """Forget records below position `before`; never moves `begin` backwards."""

    def position_at(self, channel: Channel, partition: int, appended_at_ns: int) -> int:
        """Position of the first record appended at or after this time; `end` when there is none."""

    def close(self) -> None:
        """Give back files, sockets and threads. Safe to call twice."""

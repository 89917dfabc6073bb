"""Trajectories, records and log entries for tests, small enough to check by hand."""

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from offbeat.log import Entry, Record
from offbeat.trajectory import RecordHeaders, TrajectoryBatch, column, encode, trajectory_schema

RUN_ID = "test-run"
SCHEMA = trajectory_schema([column("x", pa.float32(), (2,), finite=True)])


def batch(versions: Sequence[int], *, x: Sequence[float] | None = None) -> TrajectoryBatch:
    """One trajectory per version; `x` is [v, v] unless given."""
    values = np.array(versions if x is None else x, dtype=np.float32)
    arrays = {
        "min_version": np.array(versions),
        "max_version": np.array(versions),
        "finished_at_ns": np.full(len(versions), 1_000),
        "x": np.repeat(values[:, None], 2, axis=1),
    }
    return TrajectoryBatch.from_arrays(SCHEMA, arrays)


def entry(versions: Sequence[int], *, sequence: int, generator: int = 0, incarnation: int = 1, **more: object) -> Entry:
    """A log entry of trajectories with these versions."""
    headers, payload = encode(
        batch(versions, **more),  # type: ignore[arg-type]
        run_id=RUN_ID,
        generator=generator,
        incarnation=incarnation,
        sequence=sequence,
        created_at_ns=1_000,
    )
    return Entry(headers=headers, payload=payload)


def record(found: Entry, *, position: int, partition: int = 0) -> Record:
    """An entry as the log would give it back."""
    return Record(
        channel="trajectories",
        partition=partition,
        position=position,
        appended_at_ns=time.time_ns(),
        headers=found.headers,
        payload=found.payload,
    )


def headers_of(found: Entry) -> RecordHeaders:
    """The parsed headers of an entry."""
    return RecordHeaders.parse(found.headers)

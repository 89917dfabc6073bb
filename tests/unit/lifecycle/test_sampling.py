"""The sample that the quality suites look at: which trajectories, and how many."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.config import parse_config
from offbeat.lifecycle.sampling import RECORDS_PER_PARTITION, sample_trajectories
from offbeat.log import Entry
from offbeat.runs import Run
from offbeat.trajectory import TrajectoryBatch, column_shape, encode
from offbeat.workloads import open_workload


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = {"name": "small", "workload": {"unroll_length": 2}, "generator": {"num_generators": 3}}
    return Run.create(parse_config(config), run_id="r", home=tmp_path)


def record(run: Run, versions: Sequence[int]) -> Entry:
    """A record of the run's own schema, zeros all over but for the policy versions, which tell the rows apart."""
    schema = open_workload(run.config).schema
    shapes = {field.name: column_shape(field) for field in schema}
    arrays: dict[str, Any] = {
        name: [[]] * len(versions) if shape is None else np.zeros((len(versions), *shape))
        for name, shape in shapes.items()
    }
    arrays |= {"min_version": np.array(versions), "max_version": np.array(versions)}
    headers, payload = encode(
        TrajectoryBatch.from_arrays(schema, arrays),
        run_id=run.run_id,
        generator=0,
        incarnation=1,
        sequence=0,
        created_at_ns=1,
    )
    return Entry(headers=headers, payload=payload)


def append(run: Run, partition: int, *entries: Entry) -> None:
    log = run.open_log()
    log.append("trajectories", partition, entries)
    log.close()


def sampled(run: Run, limit: int) -> list[int] | None:
    batch = sample_trajectories(run, limit=limit)
    return None if batch is None else batch.min_version.tolist()


def test_an_empty_log_gives_no_sample(run: Run) -> None:
    assert sampled(run, 10) is None


def test_every_generator_gives_its_share_of_the_newest(run: Run) -> None:
    append(run, 0, record(run, [1, 2, 3]), record(run, [4, 5, 6]))
    append(run, 1, record(run, [11]))
    append(run, 2, record(run, [21, 22, 23, 24]))
    assert sampled(run, 6) == [5, 6, 11, 23, 24]
    assert sampled(run, 12) == [3, 4, 5, 6, 11, 21, 22, 23, 24]
    assert sampled(run, 8) == [5, 6, 11, 23, 24]  # 8 // 3 = 2 each


@pytest.mark.parametrize(("limit", "expected"), [(1, [1]), (2, [1, 11]), (3, [1, 11, 21]), (5, [1, 11, 21])])
def test_there_are_never_more_than_the_limit(run: Run, limit: int, expected: list[int]) -> None:
    for partition, version in enumerate((1, 11, 21)):
        append(run, partition, record(run, [0, version]))
    assert sampled(run, limit) == expected


def test_only_the_last_records_are_opened(run: Run) -> None:
    append(run, 0, *[record(run, [version]) for version in range(RECORDS_PER_PARTITION + 2)])
    assert sampled(run, 300) == list(range(2, RECORDS_PER_PARTITION + 2))


def test_what_does_not_decode_is_left_out(run: Run) -> None:
    good = record(run, [1, 2])
    broken = bytearray(good.payload)
    broken[len(broken) // 2] ^= 1
    flipped = Entry(headers=good.headers, payload=bytes(broken))
    nameless = Entry(headers={}, payload=good.payload)
    append(run, 0, flipped, good, nameless)
    append(run, 1, flipped)
    assert sampled(run, 30) == [1, 2]


def test_trimmed_records_are_not_missed(run: Run) -> None:
    append(run, 0, record(run, [1]), record(run, [2]), record(run, [3]))
    log = run.open_log()
    log.trim("trajectories", 0, 2)
    assert sampled(run, 30) == [3]
    log.trim("trajectories", 0, 3)
    log.close()
    assert sampled(run, 30) is None

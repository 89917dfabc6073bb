from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from offbeat.errors import ConfigError, NotReady
from offbeat.quality import score_frame, trajectory_frame, validate
from offbeat.trajectory import TrajectoryBatch, column, ragged, trajectory_schema
from offbeat.workloads.control.columns import Discrete, control_schema

N, T = 6, 4


def control_batch(**changes: Any) -> TrajectoryBatch:
    """Six sound CartPole-like trajectories; the first has an episode of 3 steps that ended in it."""
    schema = control_schema(observation_shape=(2,), observation_dtype="float32", action=Discrete(n=2), unroll_length=T)
    arrays = {
        "min_version": np.zeros(N, np.int64),
        "max_version": np.ones(N, np.int64),
        "finished_at_ns": np.full(N, 1_700_000_000_000_000_000),
        "observations": np.zeros((N, T + 1, 2)),
        "actions": np.ones((N, T)),
        "rewards": np.ones((N, T)),
        "logprobs": np.full((N, T), 0.5),  # A density may exceed 1.
        "flags": np.array([[0, 0, 1, 4]] + [[0] * T] * (N - 1)),
        "final_observations": [[]] * N,
        "episode_returns": [[3.0]] + [[]] * (N - 1),
        "episode_lengths": [[3]] + [[]] * (N - 1),
    }
    return TrajectoryBatch.from_arrays(schema, {**arrays, **changes})


def test_frame_of_every_kind_of_column_by_hand() -> None:
    schema = trajectory_schema(
        [column("score", pa.float32()), column("grid", pa.float32(), (2, 2)), ragged("tokens", pa.int32())]
    )
    batch = TrajectoryBatch.from_arrays(
        schema,
        {
            "min_version": [1, 2],
            "max_version": [3, 4],
            "finished_at_ns": [5, 6],
            "score": [0.5, 1.5],
            "grid": np.array([[[1, 2], [3, 6]], [[np.nan, np.inf], [4, -2]]]),
            "tokens": [[7, 9], []],
        },
    )
    frame = trajectory_frame(batch)
    assert frame["score"].tolist() == [0.5, 1.5]
    assert frame["grid_length"].tolist() == [4, 4]
    assert frame[["grid_min", "grid_max", "grid_mean", "grid_finite_share"]].to_numpy().tolist() == [
        [1, 6, 3, 1],
        [-2, 4, 1, 0.5],
    ]
    assert frame["tokens_length"].tolist() == [2, 0]
    assert frame["tokens_finite_share"].tolist() == [1, 1]
    assert frame["tokens_mean"].tolist()[0] == 8
    assert frame[["tokens_min", "tokens_max", "tokens_mean"]].iloc[1].isna().all()


def test_rows_of_a_slice_are_its_own() -> None:
    batch = control_batch(rewards=np.arange(N * T).reshape(N, T), episode_returns=[[float(at)] for at in range(N)])
    frame = trajectory_frame(batch.slice(2, 4))
    assert frame["rewards_min"].tolist() == [8, 12]
    assert frame["episode_returns_mean"].tolist() == [2, 3]


def test_row_without_one_finite_value_has_no_extremes() -> None:
    rewards = np.ones((N, T))
    rewards[1] = np.nan
    frame = trajectory_frame(control_batch(rewards=rewards))
    assert frame["rewards_finite_share"].tolist() == [1, 0, 1, 1, 1, 1]
    assert frame[["rewards_min", "rewards_max", "rewards_mean"]].iloc[1].isna().all()


def test_share_of_reset_slots() -> None:
    assert trajectory_frame(control_batch())["flags_reset_share"].tolist() == [0.25, 0, 0, 0, 0, 0]


def test_sound_trajectories_pass(tmp_path: Path) -> None:
    report = validate(trajectory_frame(control_batch()), "control", tmp_path)
    assert report.failed == ()
    assert report.success
    assert report.num_checks == 18
    assert report.docs == tmp_path / "index.html"
    assert report.docs.is_file()


def test_trajectories_in_which_no_episode_ended_pass(tmp_path: Path) -> None:
    batch = control_batch(episode_returns=[[]] * N, episode_lengths=[[]] * N, flags=np.zeros((N, T)))
    assert validate(trajectory_frame(batch), "control", tmp_path).failed == ()


# Column, row, faulty value there, and how the sentence about it begins. Each fault fails one check and no other.
FAULTS = [
    ("min_version", 0, -1, "min_version: expected column values to be between (min_value 0.0); got 1 of 6 rows"),
    ("min_version", 1, 9, "max_version and min_version: expected column pair values a to be greater than b"),
    ("finished_at_ns", 0, 0, "finished_at_ns: expected column values to be between (min_value 1.0)"),
    ("observations_finite_share", 1, 0.9, "observations_finite_share: expected column values to be between"),
    ("actions_finite_share", 2, 0.9, "actions_finite_share: expected column values to be between"),
    ("rewards_finite_share", 3, 0.5, "rewards_finite_share: expected column values to be between"),
    ("logprobs_finite_share", 4, 0, "logprobs_finite_share: expected column values to be between"),
    ("final_observations_finite_share", 5, 0, "final_observations_finite_share: expected column values to be"),
    ("episode_returns_finite_share", 0, 0, "episode_returns_finite_share: expected column values to be between"),
    ("rewards_length", 1, 3, "rewards_length: expected column unique value count to be between"),
    ("flags_min", 2, -1, "flags_min: expected column values to be between (min_value 0.0)"),
    (
        "flags_max",
        2,
        8,
        "flags_max: expected column values to be between (max_value 7.0); got 1 of 6 rows otherwise, such as 8",
    ),
    ("episode_lengths_min", 3, 0, "episode_lengths_min: expected column values to be between (min_value 1.0)"),
    ("episode_lengths_length", 4, 1, "episode_returns_length and episode_lengths_length: expected column pair values"),
]


def test_every_fault_fails_its_own_check(tmp_path: Path) -> None:
    frame = trajectory_frame(control_batch()).astype(np.float64)
    for name, row, value, _ in FAULTS:
        frame.loc[row, name] = value
    frame = frame.assign(flags_reset_share=1.0).drop(columns="logprobs_length")
    report = validate(frame, "control", tmp_path / "quality" / "control")
    expected = [start for *_, start in FAULTS]
    expected += [
        "flags_reset_share: expected column mean to be between",
        "logprobs_length: expected column unique value",
    ]
    assert not report.success
    assert len(report.failed) == len(expected), report.failed
    for start in expected:
        assert sum(sentence.startswith(start) for sentence in report.failed) == 1, start
    assert any('The column "logprobs_length" in BatchData does not exist' in sentence for sentence in report.failed)

    pages = list((tmp_path / "quality" / "control" / "validations").rglob("*.html"))
    assert len(pages) == 1
    assert pages[0].relative_to(report.docs.parent).as_posix() in report.docs.read_text()
    assert "rewards_finite_share" in pages[0].read_text()
    assert "Failed" in pages[0].read_text()


def test_a_fault_of_one_row_fails_one_check(tmp_path: Path) -> None:
    rewards = np.ones((N, T))
    rewards[3, 1:3] = np.nan
    report = validate(trajectory_frame(control_batch(rewards=rewards)), "control", tmp_path)
    assert report.failed == (
        "rewards_finite_share: expected column values to be between (min_value 1.0, max_value 1.0); "
        "got 1 of 6 rows otherwise, such as 0.5",
    )


def test_a_later_validation_takes_the_place_of_an_earlier(tmp_path: Path) -> None:
    frame = score_frame([1], np.array([1.0]))
    for _ in range(2):
        validate(frame, "evaluation", tmp_path)
    assert len(list((tmp_path / "validations").rglob("*.html"))) == 1


def test_no_rows_fail(tmp_path: Path) -> None:
    report = validate(trajectory_frame(control_batch()).iloc[:0], "control", tmp_path)
    assert "sample: expected table row count to be between (min_value 1); got 0" in report.failed


def test_a_frame_without_columns_fails_every_check(tmp_path: Path) -> None:
    report = validate(pd.DataFrame(index=range(3)), "control", tmp_path)
    assert len(report.failed) == report.num_checks - 1  # It does have rows.


def test_sound_scores_pass(tmp_path: Path) -> None:
    report = validate(score_frame(range(5), np.full(5, 500.0)), "evaluation", tmp_path, num_rows=5)
    assert (report.suite, report.success, report.num_checks, report.failed) == ("evaluation", True, 5, ())


def test_each_fault_of_scores(tmp_path: Path) -> None:
    frame = score_frame([1, 1, 2, 3], np.array([1.0, 2.0, np.inf, np.nan]))
    assert validate(frame, "evaluation", tmp_path, num_rows=5).failed == (
        "sample: expected table row count to be between (min_value 5, max_value 5); got 4",
        "seed: expected column values to be unique; got 2 of 4 rows otherwise, such as 1, 1",
        "value: expected column values to not be null; got 1 of 4 rows otherwise, such as nan",
        "finite: expected column values to be between (min_value 1.0, max_value 1.0); "
        "got 2 of 4 rows otherwise, such as 0, 0",
    )


def test_unknown_suites_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got 'controll', expected one of control, evaluation"):
        validate(pd.DataFrame(), "controll", tmp_path)


def test_pages_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReady, match="cannot write Data Docs"):
        validate(score_frame([1], np.array([1.0])), "evaluation", tmp_path / "file" / "docs")

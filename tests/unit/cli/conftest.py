"""A run folder made by hand, and the command line called in this process."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from offbeat.cli import main
from offbeat.config import parse_config
from offbeat.ledger import Cursor, Outcome, PlanView, PlanWriter, Segment, StepRow, Totals
from offbeat.log import Entry
from offbeat.runs import Run
from offbeat.trajectory import RecordHeaders


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "läufe x"


@pytest.fixture
def invoke():
    def call(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return call


@pytest.fixture
def config_file(tmp_path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text("name: small\nworkload: {num_envs: 2, unroll_length: 4}\ntraining: {batch_size: 8, max_steps: 3}\n")
    return path


def headers(*, sequence, count):
    return RecordHeaders(
        schema_version=1,
        run_id="made",
        generator=0,
        incarnation=1,
        sequence=sequence,
        count=count,
        min_version=0,
        max_version=0,
        created_at_ns=0,
        codec="none",
        crc32=0,
    ).to_mapping()


def step_row(step, *, trained, produced):
    return StepRow(
        epoch=1,
        step=step,
        seed=0,
        version_in=step - 1,
        publish=True,
        batch_size=8,
        segments=(Segment(0, step - 1, 0, 8),),
        drops=(),
        cursors={0: Cursor(step, 0)},
        marks={"0/1": produced},
        totals=Totals(trained=trained),
        settings={},
        planned_at_ns=0,
    )


@pytest.fixture
def made(home) -> Run:
    """Two steps of 8 trajectories trained, a third record of 8 pending: 24 produced."""
    return make_run(home, trained=(8, 16))


def make_run(home, *, trained) -> Run:
    run = Run.create(parse_config({"name": "made", "training": {"max_steps": 4}}), run_id="made", home=home)
    log = run.open_log()
    log.append("trajectories", 0, [Entry(headers=headers(sequence=8 * n, count=8), payload=b"x") for n in range(3)])
    writer = PlanWriter.open(log, resumed_step=0, view=PlanView())
    for step, total in enumerate(trained, start=1):
        metrics = {"staleness_max": step, "trajectory_age_s_p50": 0.25}
        if step == 1:
            metrics["episode_return_mean"] = 21.5
        outcome = Outcome(epoch=1, step=step, version_in=step - 1, version_out=step, digest="d", metrics=metrics)
        writer.write([step_row(step, trained=total, produced=8 * step), outcome])
    log.close()
    return run


@pytest.fixture
def miscounted(home) -> Run:
    """As `made`, but the plan says that 15 of the first 16 were trained."""
    return make_run(home, trained=(8, 15))


def said(role, **status):
    return {"role": role, "pid": 7, "http": "http://127.0.0.1:9", "updated_at_ns": time.time_ns(), **status}

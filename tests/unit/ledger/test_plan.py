"""The plan's rules: what counts, who may write, what the steps add up to."""

import pytest

from offbeat.errors import Fenced, LogDamaged
from offbeat.ledger import Cursor, Drop, Event, Outcome, PlanView, PlanWriter, Resolved, Segment, StepRow, Totals
from offbeat.ledger.rows import EpochRow, parse_row, row_entry
from offbeat.log import Entry, open_log


@pytest.fixture
def log(tmp_path):
    opened = open_log("sqlite", folder=tmp_path / "log", num_partitions=1, max_record_bytes=1 << 20)
    yield opened
    opened.close()


def step(number, *, epoch=1, publish=True, version_in=None, **more):
    return StepRow(
        epoch=epoch,
        step=number,
        seed=number * 11,
        version_in=number - 1 if version_in is None else version_in,
        publish=publish,
        batch_size=4,
        segments=(Segment(0, number, 0, 4),),
        drops=(Drop(segment=Segment(0, 1, 2, 3), fate="stale", reason="old", count=1),),
        cursors={0: Cursor(number + 1, 2)},
        marks={"0/1": number * 4},
        totals=Totals(trained=4 * number, stale=number),
        settings={"batch_size": 4.0},
        planned_at_ns=1,
        **more,
    )


def outcome(number, *, epoch=1, digest="d"):
    return Outcome(
        epoch=epoch, step=number, version_in=number - 1, version_out=number, digest=digest, metrics={"a": 1.5}
    )


def write(log, *rows):
    log.append("plan", 0, [row_entry(row) for row in rows])


@pytest.mark.parametrize(
    "row",
    [
        step(3),
        outcome(3),
        EpochRow(epoch=2, resumed_step=1, started_at_ns=5),
        Event(epoch=1, step=2, name="divergence", detail="x", at_ns=9),
    ],
)
def test_rows_come_back_as_they_were(log, row):
    write(log, row)
    (record,) = log.read("plan", 0, log.begin("plan", 0))
    assert parse_row(record) == row


def test_unreadable_row_is_named_by_position(log):
    log.append("plan", 0, [Entry(headers={"kind": "step", "epoch": "1"}, payload=b"{")])
    with pytest.raises(LogDamaged, match="plan's row at position 0 cannot be read"):
        PlanView().advance(log)


def test_rows_of_an_older_epoch_after_a_newer_one_do_not_count(log):
    write(
        log, step(1), EpochRow(epoch=2, resumed_step=0, started_at_ns=0), step(2, epoch=1), step(2, epoch=2), outcome(1)
    )
    view = PlanView().advance(log)
    assert view.steps[2][0].epoch == 2
    assert view.outcomes == {}


def test_first_row_of_a_step_is_the_plan(log):
    first, second = step(1), step(1, publish=False)
    write(log, first, second)
    assert PlanView().advance(log).steps[1][0] == first


def test_resolved_adds_up_and_stops_at_the_first_step_without_outcome(log):
    write(log, step(1), step(2, publish=False), outcome(1), step(3, version_in=1), outcome(2))
    view = PlanView().advance(log)
    finished = view.resolved(Resolved(), finished_only=True)
    assert (finished.step, finished.version, finished.cursors, finished.marks) == (2, 1, {0: Cursor(3, 2)}, {"0/1": 8})
    assert view.resolved(Resolved(), finished_only=False).step == 3
    assert [row.step for row, _ in view.steps_after(1)] == [2, 3]


def test_writer_begins_a_new_epoch_and_carries_deferred_rows_in_order(log):
    first = PlanWriter.open(log, resumed_step=0, view=PlanView())
    first.write([step(1)])
    first.defer(outcome(1))
    first.write([step(2)])
    view = PlanView().advance(log)
    assert (view.epoch, sorted(view.steps), sorted(view.outcomes)) == (1, [1, 2], [1])
    second = PlanWriter.open(log, resumed_step=0, view=view)
    assert second.epoch == 2


def test_zombie_is_told_and_leaves_no_row(log):
    zombie = PlanWriter.open(log, resumed_step=0, view=PlanView())
    PlanWriter.open(log, resumed_step=0, view=PlanView())
    with pytest.raises(Fenced, match="epoch 2"):
        zombie.write([step(1)])
    assert PlanView().advance(log).steps == {}


def test_resolved_state_survives_json(log):
    write(log, step(1))
    state = PlanView().advance(log).resolved(Resolved(), finished_only=False)
    assert Resolved.from_json(state.to_json()) == state

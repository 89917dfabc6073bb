"""The account on hand-made logs: every trajectory in one place, whatever happened to the records."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from offbeat.ledger import Cursor, Outcome, Resolved, Segment, StepRow, Totals, account_of, read_outcomes
from offbeat.ledger.parquet import write_ledger
from offbeat.ledger.retention import trim_resolved
from offbeat.ledger.rows import row_entry
from offbeat.log import Entry, open_log
from tests.builders import entry


@pytest.fixture
def log(tmp_path):
    opened = open_log("sqlite", folder=tmp_path / "log", num_partitions=1, max_record_bytes=1 << 20)
    yield opened
    opened.close()


def planned(log, *, cursor, marks, totals, finished=True):
    row = StepRow(
        epoch=1,
        step=1,
        seed=1,
        version_in=0,
        publish=True,
        batch_size=2,
        segments=(Segment(0, 0, 0, 2),),
        drops=(),
        cursors={0: cursor},
        marks=marks,
        totals=totals,
        settings={},
        planned_at_ns=0,
    )
    done = Outcome(epoch=1, step=1, version_in=0, version_out=1, digest="d", metrics={"staleness_max": 2.0})
    log.append("plan", 0, [row_entry(row), *([row_entry(done)] if finished else [])])
    return row, done


def test_empty_log(log):
    account = account_of(log)
    assert (account.produced, account.pending, account.steps, account.difference) == (0, 0, 0, 0)


def test_everything_is_pending_before_the_first_step(log):
    log.append("trajectories", 0, [entry([0, 0, 0], sequence=0), entry([0], sequence=3)])
    account = account_of(log)
    assert (account.produced, account.pending, account.trained, account.difference) == (4, 4, 0, 0)


def test_half_a_record_trained_leaves_the_other_half_pending(log):
    log.append("trajectories", 0, [entry([0, 0, 0], sequence=0)])
    planned(log, cursor=Cursor(log.begin("trajectories", 0), 2), marks={"0/1": 3}, totals=Totals(trained=2))
    account = account_of(log)
    assert (account.produced, account.trained, account.pending, account.difference) == (3, 2, 1, 0)
    assert (account.steps, account.policy_version, account.staleness_max) == (1, 1, 2)


def test_planned_step_without_outcome_is_still_pending(log):
    log.append("trajectories", 0, [entry([0, 0], sequence=0)])
    planned(log, cursor=Cursor(1, 0), marks={"0/1": 2}, totals=Totals(trained=2), finished=False)
    account = account_of(log)
    assert (account.trained, account.pending, account.difference) == (0, 2, 0)


def test_duplicates_and_gaps_among_pending_records_do_not_upset_it(log):
    found = entry([0, 0], sequence=0)
    log.append("trajectories", 0, [found, found, entry([0], sequence=5), Entry(headers={}, payload=b"")])
    account = account_of(log)
    assert (account.produced, account.pending, account.difference) == (6, 6, 0)


def test_a_wrong_total_shows_as_a_difference(log):
    log.append("trajectories", 0, [entry([0, 0], sequence=0)])
    planned(log, cursor=Cursor(1, 0), marks={"0/1": 2}, totals=Totals(trained=1))
    assert account_of(log).difference == 1


def test_outcomes_are_read_from_where_one_left_off(log):
    planned(log, cursor=Cursor(1, 0), marks={}, totals=Totals())
    first, position = read_outcomes(log)
    assert [found.step for found in first] == [1]
    assert read_outcomes(log, position)[0] == []


def test_ledger_table_has_a_row_per_step(log, tmp_path):
    row, done = planned(log, cursor=Cursor(1, 0), marks={}, totals=Totals(trained=2))
    write_ledger(tmp_path / "ledger.parquet", [(row, done), (replace(row, step=2), replace(done, step=2))])
    table = pq.read_table(tmp_path / "ledger.parquet")
    assert table["step"].to_pylist() == [1, 2]
    assert table["trained"].to_pylist() == [2, 2]
    assert table["segments"].to_pylist()[0] == [[0, 0, 0, 2]]


def test_trim_takes_what_is_old_and_resolved_only(log):
    log.append("trajectories", 0, [entry([0], sequence=n) for n in range(4)])
    begin = log.begin("trajectories", 0)
    needed = Resolved(step=1, cursors={0: Cursor(begin + 2, 0)})
    assert trim_resolved(log, needed, older_than_s=3600) == {}
    assert trim_resolved(log, needed, older_than_s=-1) == {0: 2}
    assert log.begin("trajectories", 0) == begin + 2

"""The planner's decisions, worked out by hand on trajectories whose number is their content."""

from offbeat.config import parse_config
from offbeat.ledger import Cursor, Resolved
from offbeat.trainer.controllers import Signals
from offbeat.trainer.intake import Item
from offbeat.trainer.planner import Planner, step_seed
from tests.builders import batch

QUIET = Signals(backlog=0, starved=False, age_s=0.0, lag_steps=0, publish_share=0.0, since_publish_s=1.0)


def planner(state=None, **training):
    config = parse_config({"seed": 3, "training": {"batch_size": 4, "max_staleness": 1, **training}})
    return Planner(config, state or Resolved(), epoch=1)


def item(versions, *, position, partition=0, x=None, sequence=0):
    rows = batch(versions, x=x)
    return Item(
        partition=partition,
        position=position,
        row=0,
        end=len(rows),
        count=len(rows),
        producer=f"{partition}/1",
        following=sequence + len(rows),
        oldest_version=min(versions),
        batch=rows,
    )


def dropped(fate, count, *, position, rows=None):
    return Item(
        partition=0,
        position=position,
        row=0,
        end=count if rows is None else rows,
        count=count,
        producer="0/1",
        following=99,
        fate=fate,
        reason="because",
    )


def values(planned):
    return planned.batch.numpy("x")[:, 0].tolist()


def test_takes_the_oldest_in_read_order_and_leaves_the_rest():
    plan = planner()
    plan.offer([item([0, 0, 0], position=0, x=[1, 2, 3]), item([0, 0, 0], position=0, partition=1, x=[4, 5, 6])])
    planned = plan.plan(QUIET)
    assert values(planned) == [1, 2, 3, 4]
    assert planned.row.cursors == {0: Cursor(1, 0), 1: Cursor(0, 1)}
    assert planned.row.totals.trained == 4
    assert plan.num_fresh == 2


def test_next_step_goes_on_inside_the_record():
    plan = planner()
    plan.offer([item([1] * 9, position=5, x=range(9))])
    assert values(plan.plan(QUIET)) == [0, 1, 2, 3]
    second = plan.plan(QUIET)
    assert values(second) == [4, 5, 6, 7]
    assert second.row.cursors == {0: Cursor(5, 8)}
    assert second.row.step == 2


def test_not_ready_below_a_whole_batch():
    plan = planner()
    plan.offer([item([0, 0, 0], position=0)])
    assert not plan.ready
    plan.offer([item([0], position=1)])
    assert plan.ready


def test_stale_trajectories_are_dropped_with_their_count():
    plan = planner(Resolved(step=8, version=8))
    plan.offer([item([5, 6, 7, 8, 8], position=0, x=[1, 2, 3, 4, 5]), item([7], position=1, x=[6])])
    assert plan.num_fresh == 4
    planned = plan.plan(QUIET)
    assert values(planned) == [3, 4, 5, 6]
    assert [(drop.fate, drop.count, drop.segment.begin, drop.segment.end) for drop in planned.row.drops] == [
        ("stale", 2, 0, 2)
    ]
    assert (planned.row.totals.stale, planned.row.totals.trained) == (2, 4)


def test_what_was_fresh_gets_stale_when_a_version_is_published():
    plan = planner(Resolved(step=1, version=1), max_staleness=0)
    plan.offer([item([1] * 6, position=0)])
    planned = plan.plan(QUIET)
    assert planned.row.version_out == 2
    assert plan.num_fresh == 0


def test_no_new_version_keeps_them_fresh():
    plan = planner()
    plan.settings = type(plan.settings)(batch_size=4, sync_interval_s=100.0)
    plan.offer([item([0] * 6, position=0)])
    planned = plan.plan(QUIET)
    assert (planned.row.publish, planned.row.version_out, plan.num_fresh) == (False, 0, 2)


def test_broken_duplicate_and_missing_leave_with_their_own_counts():
    plan = planner()
    plan.offer(
        [
            dropped("quarantined", 3, position=0),
            dropped("duplicate", 2, position=1),
            dropped("quarantined", 5, position=1, rows=0),
            item([0] * 4, position=2),
        ]
    )
    totals = plan.plan(QUIET).row.totals
    assert (totals.quarantined, totals.duplicate, totals.trained) == (8, 2, 4)
    assert totals.resolved == 12


def test_buffer_evicts_the_oldest_beyond_its_capacity():
    plan = planner(buffer_capacity=5)
    plan.offer([item([0] * 4, position=0, x=[1, 2, 3, 4]), item([0] * 4, position=1, x=[5, 6, 7, 8])])
    assert plan.num_fresh == 5
    planned = plan.plan(QUIET)
    assert values(planned) == [4, 5, 6, 7]
    assert planned.row.totals.evicted == 3
    assert planned.row.drops[0].reason.startswith("buffer full")


def test_buffer_evicts_by_bytes():
    plan = planner(buffer_bytes=1 << 20)
    big = 1 << 15  # 32,768 trajectories of 32 bytes: 1 MiB a record
    plan.offer([item([0] * big, position=0), item([0] * big, position=1)])
    assert plan.num_fresh == big


def test_marks_name_each_producer_taken_up():
    plan = planner()
    plan.offer([item([0] * 2, position=0, sequence=10), item([0] * 3, position=0, partition=1, sequence=7)])
    assert plan.plan(QUIET).row.marks == {"0/1": 12, "1/1": 10}


def test_step_seed_depends_on_run_and_step_alone():
    assert step_seed(3, 1) == step_seed(3, 1)
    assert len({step_seed(run, step) for run in range(10) for step in range(10)}) == 100
    assert 0 <= step_seed(0, 0) < 2**63

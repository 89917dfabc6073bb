"""The final account's arithmetic, with numbers worked out by hand."""

import pytest

from offbeat.ledger import Outcome
from offbeat.lifecycle.report import measure_speed


def outcome(step: int, **metrics: float) -> Outcome:
    return Outcome(
        epoch=1, step=step, version_in=step - 1, version_out=step, digest="", metrics=metrics, finished_at_ns=step
    )


def test_a_run_without_steps_has_no_speed() -> None:
    assert measure_speed([]) is None


def test_speed_counts_work_and_waiting_but_not_the_wait_for_the_first_step() -> None:
    first = outcome(1, samples=300, trajectories=30, step_s=1.0, publish_s=0.5, wait_s=100, data_latency_ms_p50=2)
    second = outcome(2, samples=700, trajectories=70, step_s=1.0, publish_s=0.5, wait_s=1.0, data_latency_ms_p50=4)
    speed = measure_speed([first, second])
    assert speed is not None
    assert speed.samples_per_second == pytest.approx(1000 / 4)  # 1.5 + 1.5 busy, 1 waiting
    assert speed.trajectories_per_second == pytest.approx(100 / 4)
    assert speed.trainer_busy_ratio == pytest.approx(3 / 4)
    assert speed.data_latency_p50_ms == 3


def test_the_latency_is_the_worst_of_the_steps_but_for_one_in_a_hundred() -> None:
    steps = [outcome(n, step_s=1, data_latency_ms_p99=float(n)) for n in range(1, 102)]  # 1 .. 101
    speed = measure_speed(steps)
    assert speed is not None
    assert speed.data_latency_p99_ms == pytest.approx(100)  # at 99 % of the way from 1 to 101

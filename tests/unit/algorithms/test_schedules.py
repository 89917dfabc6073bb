"""Learning-rate schedules."""

import pytest

from offbeat.algorithms.schedules import learning_rate


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [0.4, 0.4, 0.4, 0.4]), ("linear", [0.4, 0.3, 0.2, 0.0]), ("cosine", [0.4, 0.3414214, 0.2, 0.0])],
)
def test_rates_at_begin_quarter_half_and_end(schedule, rates):
    found = [learning_rate(schedule, 0.4, step=step, max_steps=100) for step in (0, 25, 50, 100)]
    assert found == pytest.approx(rates)


def test_steps_past_the_end_never_turn_negative():
    assert learning_rate("linear", 0.4, step=150, max_steps=100) == 0.0

import numpy as np
import pytest

from offbeat.telemetry import BusyRatio, RecentPercentiles, WindowRate


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_rate_is_zero_before_anything_was_counted():
    assert WindowRate(10, clock=Clock()).per_second() == 0


def test_rate_is_over_the_time_since_the_start_while_that_is_shorter_than_the_window():
    clock = Clock()
    rate = WindowRate(10, clock=clock)
    clock.now += 2
    rate.add(100)
    assert rate.per_second() == 50
    clock.now += 2
    assert rate.per_second() == 25


def test_rate_forgets_what_left_the_window():
    clock = Clock()
    rate = WindowRate(10, clock=clock)
    for count in (1000, 20, 30):
        clock.now += 5
        rate.add(count)
    # At 115 the window holds what came after 105: 20 and 30 in 10 seconds.
    assert rate.per_second() == 5
    clock.now += 60
    assert rate.per_second() == 0


def test_percentiles_are_numpys_over_the_last_values():
    recent = RecentPercentiles(capacity=4)
    assert recent.percentiles(50, 99) == [None, None]
    recent.add([100.0, 1.0, 2.0])
    assert recent.percentiles(50) == [2.0]
    recent.add([3.0, 4.0])
    assert recent.percentiles(0, 50, 100) == [1.0, 2.5, 4.0]


@pytest.mark.parametrize("pieces", [[1] * 23, [5, 5, 5, 5, 3], [23], [0, 7, 16]])
def test_percentiles_keep_the_newest_values_however_they_arrive(pieces):
    values = np.arange(23.0)
    recent = RecentPercentiles(capacity=8)
    for end, size in zip(np.cumsum(pieces), pieces, strict=True):
        recent.add(values[end - size : end])
    assert recent.percentiles(0, 100) == [15.0, 22.0]


def test_busy_ratio_in_all_and_lately():
    ratio = BusyRatio(window_s=10)
    assert (ratio.recent, ratio.total) == (0, 0)
    ratio.add(wait_s=30)
    ratio.add(busy_s=9, wait_s=1)
    assert ratio.recent == pytest.approx(0.9)
    assert ratio.total == pytest.approx(9 / 40)


def test_busy_ratio_stays_between_zero_and_one_over_many_uneven_spans():
    ratio = BusyRatio(window_s=0.1)
    for count in range(5000):
        ratio.add(busy_s=0.1 / (count % 7 + 1))
    assert ratio.recent == 1.0

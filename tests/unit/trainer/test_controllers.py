"""The two controllers: what each signal does, within the bounds."""

from dataclasses import replace

import pytest

from offbeat.config import parse_config
from offbeat.trainer.controllers import Settings, Signals, next_settings, should_publish

QUIET = Signals(backlog=100, starved=False, age_s=0.1, lag_steps=0, publish_share=0.03, since_publish_s=1.0)


def config(**training):
    values = {"batch_size": 100, "batch_size_min": 50, "batch_size_max": 200, "sync_interval": 10.0, **training}
    return parse_config({"training": values})


def after(signals, *, batch_size=100, interval=0.0, **training):
    return next_settings(Settings(batch_size=batch_size, sync_interval_s=interval), signals, config(**training))


def test_quiet_changes_nothing():
    assert after(QUIET, interval=1.0) == Settings(batch_size=100, sync_interval_s=1.0)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (replace(QUIET, backlog=200), 126),
        (replace(QUIET, age_s=6.0), 126),
        (replace(QUIET, starved=True, backlog=99), 80),
        (replace(QUIET, starved=True, backlog=100), 100),
    ],
)
def test_batch_grows_with_backlog_and_age_and_shrinks_when_starved(signals, expected):
    assert after(signals).batch_size == expected


def test_batch_stays_within_its_bounds():
    assert after(replace(QUIET, backlog=10_000), batch_size=190).batch_size == 200
    assert after(replace(QUIET, starved=True, backlog=0), batch_size=55).batch_size == 50


def test_batch_is_fixed_without_bounds_of_its_own():
    fixed = parse_config({"training": {"batch_size": 100}})
    settings = Settings(batch_size=100, sync_interval_s=0.0)
    assert next_settings(settings, replace(QUIET, backlog=10_000), fixed).batch_size == 100


def test_costly_publishing_becomes_rarer_at_most_by_doubling():
    assert after(replace(QUIET, publish_share=0.075), interval=1.0).sync_interval_s == pytest.approx(1.5)
    assert after(replace(QUIET, publish_share=0.9), interval=1.0).sync_interval_s == pytest.approx(2.0)
    assert after(replace(QUIET, publish_share=0.9), interval=0.0).sync_interval_s == pytest.approx(0.02)


def test_interval_never_exceeds_the_configured_one():
    assert after(replace(QUIET, publish_share=0.9), interval=8.0).sync_interval_s == 10.0


def test_lagging_generators_shorten_the_interval():
    assert after(replace(QUIET, lag_steps=9, publish_share=0.9), interval=4.0).sync_interval_s == 2.0


def test_cheap_publishing_returns_to_every_step():
    settings = Settings(batch_size=100, sync_interval_s=0.01)
    for _ in range(20):
        settings = next_settings(settings, replace(QUIET, publish_share=0.0), config())
    assert settings.sync_interval_s == 0.0


def test_publishing_follows_the_interval_but_synchronous_runs_always_publish():
    settings = Settings(batch_size=100, sync_interval_s=2.0)
    assert not should_publish(settings, QUIET, config())
    assert should_publish(settings, replace(QUIET, since_publish_s=2.0), config())
    assert should_publish(settings, QUIET, config(max_staleness=0))


def test_kept_settings_return_within_new_bounds():
    kept = {"batch_size": 180, "sync_interval_s": 30.0}
    assert Settings.start(config(batch_size_max=150), kept) == Settings(batch_size=150, sync_interval_s=10.0)
    assert Settings.start(config(), {}) == Settings(batch_size=100, sync_interval_s=0.0)

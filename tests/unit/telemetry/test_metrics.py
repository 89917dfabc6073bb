import math

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from offbeat.telemetry import GeneratorMetrics, TrainerMetrics
from offbeat.telemetry.histogram import Distribution


def samples(metrics, accept="text/plain"):
    content_type, body = metrics.exposition(accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


def trained_once(clock=lambda: 0.0):
    metrics = TrainerMetrics(clock=clock)
    metrics.observe_step(step=7, training_loss=0.25, samples=4096, trajectories=128)
    metrics.set_policy_version(8)
    metrics.observe_batch(
        age_s=np.array([0.5, 1.5]), data_latency_s=np.array([0.001, 0.02, 20.0]), staleness=np.array([0, 2, 2])
    )
    metrics.add_time(busy_s=3, wait_s=1)
    metrics.observe_weight_sync(0.004)
    metrics.set_account(trained=128, stale=3, evicted=2, quarantined=1, pending=10, duplicates=4)
    metrics.set_log_lag(5)
    return metrics


def test_every_name_of_the_design_is_exposed(monkeypatch):
    monkeypatch.setattr("offbeat.telemetry.metrics.gpu_utilization", lambda: {"cuda:0": 0.5})
    names = {name for name, *_ in samples(trained_once())} | {name for name, *_ in samples(GeneratorMetrics())}
    assert names >= {
        "offbeat_training_loss",
        "offbeat_samples_per_second",
        "offbeat_trajectory_age_seconds_bucket",
        "offbeat_data_latency_seconds_bucket",
        "offbeat_staleness_versions_bucket",
        "offbeat_log_lag_records",
        "offbeat_admission_wait_seconds_total",
        "offbeat_trainer_busy_ratio",
        "offbeat_generator_busy_ratio",
        "offbeat_weight_sync_seconds_bucket",
        "offbeat_trajectories_total",
        "offbeat_gpu_utilization_ratio",
        "offbeat_restarts_total",
    }


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_values_arrive_in_both_text_formats(accept):
    values = samples(trained_once(), accept)
    assert values["offbeat_training_loss",] == 0.25
    assert values["offbeat_step",] == 7
    assert values["offbeat_policy_version",] == 8
    assert values["offbeat_trainer_busy_ratio",] == 0.75
    assert values["offbeat_log_lag_records",] == 5
    assert values["offbeat_trajectories_pending",] == 10
    assert values["offbeat_duplicate_trajectories_total",] == 4
    fates = {
        fate: values["offbeat_trajectories_total", ("fate", fate)]
        for fate in ("trained", "stale", "evicted", "quarantined")
    }
    assert fates == {"trained": 128, "stale": 3, "evicted": 2, "quarantined": 1}
    assert values["offbeat_staleness_versions_bucket", ("le", "0.0")] == 1
    assert values["offbeat_staleness_versions_bucket", ("le", "2.0")] == 3
    assert values["offbeat_data_latency_seconds_bucket", ("le", "0.001")] == 1
    assert values["offbeat_data_latency_seconds_bucket", ("le", "10.0")] == 2
    assert values["offbeat_data_latency_seconds_count",] == 3
    assert values["offbeat_data_latency_seconds_sum",] == pytest.approx(20.021)


def test_snapshot_of_a_trainer():
    now = [0.0]
    metrics = trained_once(lambda: now[0])
    now[0] = 2.0
    assert metrics.snapshot() == {
        "step": 7,
        "training_loss": 0.25,
        "policy_version": 8,
        "samples_per_second": 2048,
        "trajectories_per_second": 64,
        "weight_sync_p50_ms": 4.0,
        "restarts": 0,
        "trajectory_age": 1.0,
        "trajectory_age_p99": pytest.approx(1.49),
        "data_latency_p50_ms": 20.0,
        "data_latency_p99_ms": pytest.approx(19600.4),
        "staleness_max": 2,
        "trainer_busy_ratio": 0.75,
        "trainer_busy_ratio_total": 0.75,
        "log_lag_records": 5,
        "trained": 128,
        "stale": 3,
        "evicted": 2,
        "quarantined": 1,
        "pending": 10,
        "duplicates": 4,
    }


def test_what_is_not_known_or_not_finite_is_none_in_a_snapshot():
    metrics = TrainerMetrics()
    assert metrics.snapshot()["training_loss"] is None
    assert metrics.snapshot()["data_latency_p99_ms"] is None
    metrics.observe_step(step=1, training_loss=math.inf, samples=1, trajectories=1)
    assert metrics.snapshot()["training_loss"] is None


def test_largest_staleness_of_the_run_outlives_a_restart():
    metrics = trained_once()
    metrics.set_account(trained=0, stale=0, evicted=0, quarantined=0, pending=0, duplicates=0, staleness_max=9)
    assert metrics.snapshot()["staleness_max"] == 9


def test_generator_counts_what_it_produced_and_how_long_it_waited():
    metrics = GeneratorMetrics(clock=lambda: 0.0)
    metrics.observe_unroll(trajectories=64, samples=2048)
    metrics.add_busy(3)
    metrics.add_admission_wait(1)
    metrics.add_env_error()
    metrics.set_restarts(2)
    values = samples(metrics)
    assert values["offbeat_trajectories_total", ("fate", "produced")] == 64
    assert values["offbeat_admission_wait_seconds_total",] == 1
    assert values["offbeat_generator_busy_ratio",] == 0.75
    assert values["offbeat_env_errors_total",] == 1
    assert values["offbeat_restarts_total",] == 2
    assert metrics.snapshot()["produced"] == 64


def test_a_distribution_leaves_out_nan_and_takes_nothing_from_an_empty_array():
    part = Distribution("x", "x", buckets=(1, 2))
    part.observe([math.nan])
    part.observe(np.zeros(0))
    assert part.largest is None
    part.observe([1.0, math.nan, 3.0])
    family = part.family()
    assert [(sample.labels.get("le"), sample.value) for sample in family.samples] == [
        ("1.0", 1),
        ("2.0", 1),
        ("+Inf", 2),
        (None, 2),
        (None, 4),
    ]


def test_two_trainers_in_one_process_do_not_share_numbers():
    first, second = TrainerMetrics(), TrainerMetrics()
    first.set_policy_version(5)
    assert second.snapshot()["policy_version"] == 0


def test_a_format_version_that_is_none_gets_plain_text():
    assert TrainerMetrics().exposition("application/openmetrics-text;version=abc")[0].startswith("text/plain")

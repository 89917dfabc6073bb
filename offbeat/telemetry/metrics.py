"""The numbers that a trainer and a generator show: set once a step, read by a scraper or as JSON.

    step   ──> TrainerMetrics   ──┬──> exposition(accept)   Prometheus text or OpenMetrics
    unroll ──> GeneratorMetrics ──┘──> snapshot()           one flat JSON object

A setter stores a number and no more; names, help texts and formats come in when somebody reads. Every object has a
registry of its own, so two of them in one process never clash. docs/metrics.md explains each name. Counts that a
restart must not lose are the ledger's totals, handed over with `set_account`.
"""

import math
import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from offbeat.telemetry.gpu import gpu_utilization
from offbeat.telemetry.histogram import Distribution
from offbeat.telemetry.rates import BusyRatio, Clock, Values, WindowRate

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
AGE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
STALENESS_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)

Snapshot = dict[str, float | int | None]


class ProcessMetrics(Collector):
    """What both sides show: rates, the version they hold, transfers of weights, and how busy their GPUs are."""

    def __init__(self, *, window_s: float = 30.0, clock: Clock = time.monotonic) -> None:
        self._samples = WindowRate(window_s, clock=clock)
        self._trajectories = WindowRate(window_s, clock=clock)
        self._busy = BusyRatio(window_s)
        self._sync = Distribution(
            "offbeat_weight_sync_seconds", "Time to hand over one policy version.", buckets=LATENCY_BUCKETS_S
        )
        self._policy_version = 0
        self._restarts = 0
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def exposition(self, accept: str) -> tuple[str, bytes]:
        """(content type, body) in the Prometheus format that the Accept header prefers."""
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version parameter that is no version: any client may send one
            encoder, content_type = choose_encoder("text/plain")
        return content_type, encoder(self.registry)

    def observe_weight_sync(self, seconds: float) -> None:
        """Report one transfer of weights: published (trainer), or fetched and loaded (generator)."""
        self._sync.observe(seconds)

    def set_policy_version(self, version: int) -> None:
        """Report the newest version held."""
        self._policy_version = version

    def set_restarts(self, count: int) -> None:
        """Report how often this role was restarted in this run."""
        self._restarts = count

    def collect(self) -> Iterator[Metric]:
        """Everything as Prometheus families."""
        yield GaugeMetricFamily(
            "offbeat_samples_per_second", "Environment steps or tokens per second, lately.", self._samples.per_second()
        )
        yield GaugeMetricFamily("offbeat_policy_version", "Newest policy version held.", self._policy_version)
        yield CounterMetricFamily("offbeat_restarts", "Restarts of this process in this run.", self._restarts)
        yield self._sync.family()
        gpus = GaugeMetricFamily(
            "offbeat_gpu_utilization_ratio", "Share of time the device computes.", labels=["device"]
        )
        for device, ratio in gpu_utilization().items():
            gpus.add_metric([device], ratio)
        yield gpus

    def snapshot(self) -> Snapshot:
        """Everything as one flat object; a number that does not exist yet, or is not finite, is None."""
        return {
            "policy_version": self._policy_version,
            "samples_per_second": self._samples.per_second(),
            "trajectories_per_second": self._trajectories.per_second(),
            "weight_sync_p50_ms": _to_ms(self._sync.percentiles(50)[0]),
            "restarts": self._restarts,
        }


class TrainerMetrics(ProcessMetrics):
    """The trainer's numbers. Arrays are [num_trajectories] of one step."""

    def __init__(self, *, window_s: float = 30.0, clock: Clock = time.monotonic) -> None:
        super().__init__(window_s=window_s, clock=clock)
        self._step = 0
        self._training_loss = math.nan
        self._log_lag = 0
        self._pending = 0
        self._duplicates = 0
        self._fates = {"trained": 0, "stale": 0, "evicted": 0, "quarantined": 0}
        self._known_staleness_max = 0
        self._age = Distribution(
            "offbeat_trajectory_age_seconds", "Last action to optimiser step.", buckets=AGE_BUCKETS_S
        )
        self._latency = Distribution("offbeat_data_latency_seconds", "Append to decode.", buckets=LATENCY_BUCKETS_S)
        self._staleness = Distribution(
            "offbeat_staleness_versions", "Versions behind the learner when trained.", buckets=STALENESS_BUCKETS
        )

    def observe_step(self, *, step: int, training_loss: float, samples: int, trajectories: int) -> None:
        """Report a finished step: its number, its loss, and how much it trained on."""
        self._step = step
        self._training_loss = training_loss
        self._samples.add(samples)
        self._trajectories.add(trajectories)

    def observe_batch(self, *, age_s: Values, data_latency_s: Values, staleness: Values) -> None:
        """Report the trajectories of a step: ages and latencies in seconds, staleness in versions."""
        self._age.observe(age_s)
        self._latency.observe(data_latency_s)
        self._staleness.observe(staleness)

    def add_time(self, *, busy_s: float = 0.0, wait_s: float = 0.0) -> None:
        """Report seconds spent on a step, and seconds spent waiting for data."""
        self._busy.add(busy_s=busy_s, wait_s=wait_s)

    def set_account(
        self,
        *,
        trained: int,
        stale: int,
        evicted: int,
        quarantined: int,
        pending: int,
        duplicates: int,
        staleness_max: int = 0,
    ) -> None:
        """Take over the ledger's totals of the whole run."""
        self._fates = {"trained": trained, "stale": stale, "evicted": evicted, "quarantined": quarantined}
        self._pending = pending
        self._duplicates = duplicates
        self._known_staleness_max = staleness_max

    def set_log_lag(self, records: int) -> None:
        """Report how many records wait unread on the log."""
        self._log_lag = records

    @property
    def staleness_max(self) -> int:
        """Largest staleness that was ever trained on in this run, in versions."""
        return max(self._known_staleness_max, int(self._staleness.largest or 0))

    def collect(self) -> Iterator[Metric]:
        """Everything as Prometheus families."""
        yield from super().collect()
        yield GaugeMetricFamily("offbeat_training_loss", "Loss of the last step.", self._training_loss)
        yield GaugeMetricFamily("offbeat_step", "Steps trained.", self._step)
        yield GaugeMetricFamily(
            "offbeat_trainer_busy_ratio", "Share of time not spent waiting for data, lately.", self._busy.recent
        )
        yield GaugeMetricFamily("offbeat_log_lag_records", "Records on the log that are not read yet.", self._log_lag)
        yield GaugeMetricFamily(
            "offbeat_trajectories_pending", "Trajectories produced whose fate is open.", self._pending
        )
        fates = CounterMetricFamily("offbeat_trajectories", "Trajectories by what became of them.", labels=["fate"])
        for fate, count in self._fates.items():
            fates.add_metric([fate], count)
        yield fates
        yield CounterMetricFamily(
            "offbeat_duplicate_trajectories", "Trajectories seen again and not counted.", self._duplicates
        )
        yield from (part.family() for part in (self._age, self._latency, self._staleness))

    def snapshot(self) -> Snapshot:
        """Everything as one flat object; a number that does not exist yet, or is not finite, is None."""
        age_s, age_p99_s = self._age.percentiles(50, 99)
        latency_s, latency_p99_s = self._latency.percentiles(50, 99)
        return _finite(
            {
                "step": self._step,
                "training_loss": self._training_loss,
                **super().snapshot(),
                "trajectory_age": age_s,
                "trajectory_age_p99": age_p99_s,
                "data_latency_p50_ms": _to_ms(latency_s),
                "data_latency_p99_ms": _to_ms(latency_p99_s),
                "staleness_max": self.staleness_max,
                "trainer_busy_ratio": self._busy.recent,
                "trainer_busy_ratio_total": self._busy.total,
                "log_lag_records": self._log_lag,
                **self._fates,
                "pending": self._pending,
                "duplicates": self._duplicates,
            }
        )


class GeneratorMetrics(ProcessMetrics):
    """A generator's numbers, set once an unroll."""

    def __init__(self, *, window_s: float = 30.0, clock: Clock = time.monotonic) -> None:
        super().__init__(window_s=window_s, clock=clock)
        self._produced = 0
        self._admission_wait_s = 0.0
        self._env_errors = 0
        self._reward_faults: Mapping[str, int] = {}

    def observe_unroll(self, *, trajectories: int, samples: int) -> None:
        """Report trajectories that are on the log now, and their samples."""
        self._produced += trajectories
        self._trajectories.add(trajectories)
        self._samples.add(samples)

    def add_busy(self, seconds: float) -> None:
        """Report seconds spent acting, encoding and appending."""
        self._busy.add(busy_s=seconds)

    def add_admission_wait(self, seconds: float) -> None:
        """Report seconds spent waiting for the trainer's grant."""
        self._admission_wait_s += seconds
        self._busy.add(wait_s=seconds)

    def add_env_error(self) -> None:
        """Report one unroll lost to a failing environment."""
        self._env_errors += 1

    def set_reward_faults(self, faults: Mapping[str, int]) -> None:
        """Report rewards lost so far, by kind of fault."""
        self._reward_faults = dict(faults)

    def collect(self) -> Iterator[Metric]:
        """Everything as Prometheus families."""
        yield from super().collect()
        lost = CounterMetricFamily("offbeat_reward_faults", "Rewards lost, by kind of fault.", labels=["kind"])
        for kind, count in sorted(self._reward_faults.items()):
            lost.add_metric([kind], count)
        yield lost
        yield GaugeMetricFamily(
            "offbeat_generator_busy_ratio", "Share of time not spent waiting for admission, lately.", self._busy.recent
        )
        yield CounterMetricFamily(
            "offbeat_admission_wait_seconds", "Time spent waiting for admission.", self._admission_wait_s
        )
        yield CounterMetricFamily("offbeat_env_errors", "Unrolls lost to a failing environment.", self._env_errors)
        produced = CounterMetricFamily("offbeat_trajectories", "Trajectories by what became of them.", labels=["fate"])
        produced.add_metric(["produced"], self._produced)
        yield produced

    def snapshot(self) -> Snapshot:
        """Everything as one flat object; a number that does not exist yet, or is not finite, is None."""
        return _finite(
            {
                **super().snapshot(),
                "produced": self._produced,
                "admission_wait_seconds_total": self._admission_wait_s,
                "generator_busy_ratio": self._busy.recent,
                "env_errors": self._env_errors,
                "reward_faults": sum(self._reward_faults.values()),
            }
        )


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _finite(numbers: Snapshot) -> Snapshot:
    return {key: value if value is not None and math.isfinite(value) else None for key, value in numbers.items()}

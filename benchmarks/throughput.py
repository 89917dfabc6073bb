"""Trained samples per second, data latency and trainer busy ratio of a real run: two generators, one trainer.

    offbeat bench throughput [--steps N] [--set section.key=value ...]

Generators and trainer are processes of their own that meet through the SQLite log, as in every run. The same run with
max_staleness 0 (which is synchronous) follows in the same place, and so does the learner alone on one batch in memory:
the first is what asynchrony is measured against, the second is the limit that the log and the lifecycle take from.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import outcomes_of, play, total
from offbeat.config import RunConfig, load_config
from offbeat.ledger import Outcome
from offbeat.runs import Run, read_status

CONFIG = Path(__file__).parents[1] / "deployments" / "cartpole.yaml"
# Large unrolls and one pass over each batch: the setting in which data, not arithmetic, is the question.
SETTINGS = (
    "workload.num_envs=512",
    "training.batch_size=1024",
    "training.max_staleness=2",
    "training.algorithm.epochs=1",
    "training.algorithm.minibatches=4",
    "strategy.checkpoint_freq=1000000",
)
WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run's figures. Latencies in milliseconds, from append to decode; age in seconds."""

    samples_per_second: float
    trajectories_per_second: float
    data_latency_p50_ms: float
    data_latency_p99_ms: float
    trajectory_age_p50_s: float
    trainer_busy_ratio: float
    staleness_max: int
    stale_share: float


def main(argv: Sequence[str]) -> int:
    """Run and print; 1 when a run does not account for every trajectory."""
    parser = argparse.ArgumentParser(prog="offbeat bench throughput", description="Throughput of a real run.")
    parser.add_argument("--steps", type=int, default=500, help="steps of each run")
    parser.add_argument("--set", action="append", default=[], help="section.key=value", metavar="KEY=VALUE")
    options = parser.parse_args(argv)
    overrides = [*SETTINGS, f"training.max_steps={options.steps}", *options.set]
    asynchronous = load_config(CONFIG, overrides, environ={})
    synchronous = load_config(CONFIG, [*overrides, "training.max_staleness=0"], environ={})
    alone = learner_alone(asynchronous)
    with tempfile.TemporaryDirectory(prefix="offbeat-bench-") as home:
        first = measure(asynchronous, Path(home), "asynchronous")
        second = measure(synchronous, Path(home), "synchronous")
    show("asynchronous", first)
    show("max_staleness 0", second)
    print(f"learner alone, batch in memory   {alone:12,.0f} samples/s")
    print(f"asynchronous / synchronous       {first.samples_per_second / second.samples_per_second:12.2f}")
    print(f"asynchronous / learner alone     {first.samples_per_second / alone:12.2f}")
    return 0


def measure(config: RunConfig, home: Path, run_id: str) -> Measured:
    """Figures of one run of real processes, without its first tenth."""
    run = Run.create(config, run_id=run_id, home=home)
    account = play(run)
    return figures(run, account.stale / max(1, account.produced))


def figures(run: Run, stale_share: float) -> Measured:
    """What the ledger and the trainer's last status say."""
    outcomes = outcomes_of(run)
    store = run.open_store()
    status = read_status(store)["trainer"]
    store.close()
    steady = outcomes[int(len(outcomes) * WARM_UP_SHARE) :]
    seconds = (steady[-1].finished_at_ns - steady[0].finished_at_ns) / 1e9
    return Measured(
        samples_per_second=total(steady[1:], "samples") / seconds,
        trajectories_per_second=total(steady[1:], "trajectories") / seconds,
        data_latency_p50_ms=status["data_latency_p50_ms"],
        data_latency_p99_ms=status["data_latency_p99_ms"],
        trajectory_age_p50_s=status["trajectory_age"],
        trainer_busy_ratio=1 - total(steady, "wait_s") / (total(steady, "wait_s") + busy(steady)),
        staleness_max=status["staleness_max"],
        stale_share=stale_share,
    )


def busy(outcomes: Sequence[Outcome]) -> float:
    """Seconds spent on steps and publishing."""
    return total(outcomes, "step_s") + total(outcomes, "publish_s")


def learner_alone(config: RunConfig, *, seconds: float = 3.0) -> float:
    """Samples per second of the learner on one batch that is already in memory, with nothing else running."""
    from offbeat.algorithms.determinism import make_deterministic
    from offbeat.trajectory import TrajectoryBatch
    from offbeat.workloads import open_workload

    make_deterministic(config.training.torch_threads)
    workload = open_workload(config)
    learner, policy, rollout = workload.make_learner(), workload.make_policy(), workload.make_rollout(seed=0)
    policy.load_weights(learner.weights())
    parts = [rollout.collect(policy, 0) for _ in range(-(-config.training.batch_size // rollout.num_trajectories))]
    rollout.close()
    batch = TrajectoryBatch.concat(parts).slice(0, config.training.batch_size)
    learner.step(batch, seed=0)
    samples, begun = 0.0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        samples += learner.step(batch, seed=1)["samples"]
    return samples / (time.perf_counter() - begun)


def show(name: str, found: Measured) -> None:
    """One run's figures, a line each."""
    print(f"{name}")
    print(f"  trained samples per second     {found.samples_per_second:12,.0f}")
    print(f"  trajectories per second        {found.trajectories_per_second:12,.0f}")
    print(f"  data latency p50 / p99, ms     {found.data_latency_p50_ms:8.1f} / {found.data_latency_p99_ms:.1f}")
    print(f"  trajectory age p50, s          {found.trajectory_age_p50_s:12.3f}")
    print(f"  trainer busy ratio             {found.trainer_busy_ratio:12.3f}")
    print(f"  staleness max, versions        {found.staleness_max:12d}")
    print(f"  share dropped as stale         {found.stale_share:12.4f}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

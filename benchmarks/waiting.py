"""Rewards that wait: completions per second of an asynchronous run over the same run with max_staleness 0.

    offbeat bench waiting [--steps N] [--set section.key=value ...] [--at-least RATIO] [--json]

The reward is an async function that waits for each completion as a call to a judge does, without using the processor:
lognormal, median 50 ms, sigma 1, decided by the prompt and the completion, so that the same text waits alike in both
runs. Both runs are the same code and settings; one batch is what a generator writes at once, so that the synchronous
run waits for the slowest of a whole batch once a step, and never for the parts of one.
"""

import argparse
import asyncio
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmarks.runs import ROOT, create, outcomes_of, play, total
from offbeat.config import load_config
from offbeat.runs import Run

CONFIG = ROOT / "deployments" / "arithmetic.yaml"
SETTINGS = (
    "workload.model.made.architecture=llama",
    "workload.model.made.hidden_size=64",
    "workload.model.made.num_heads=4",
    "workload.model.made.num_layers=2",
    "workload.model.made.intermediate_size=128",
    "workload.model.made.max_length=64",
    "workload.model.warm_up.steps=0",
    "workload.sampling.max_new_tokens=8",
    "workload.rewards.functions=[{name: 'benchmarks.waiting:judge'}]",
    "workload.group_size=8",
    "workload.num_groups=8",
    "training.batch_size=64",
    "training.max_staleness=8",
    "training.algorithm.learning_rate=1.0e-6",
    "training.algorithm.warmup_steps=0",
    "training.algorithm.lr_schedule=constant",
    "generator.num_generators=1",
    "evaluation.metric=reward",
    "evaluation.episodes=8",
    "strategy.checkpoint_freq=1000000",
)
WARM_UP_SHARE = 0.1
MEDIAN_S, SIGMA = 0.05, 1.0
WAITED = "waited for "


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run's figures, without its first tenth; waits are of every reward that was asked."""

    completions_per_second: float
    tokens_per_second: float
    seconds_per_step: float
    wait_p50_ms: float
    wait_p99_ms: float
    staleness_mean: float
    staleness_max: int
    stale: int
    ledger_difference: int


def main(argv: Sequence[str]) -> int:
    """Run and print; 1 when asynchrony does not bring what `--at-least` says."""
    parser = argparse.ArgumentParser(prog="offbeat bench waiting", description="Rewards that wait.")
    parser.add_argument("--steps", type=int, default=120, help="steps of each run")
    parser.add_argument("--set", action="append", default=[], help="section.key=value", metavar="KEY=VALUE")
    parser.add_argument("--at-least", type=float, default=3.0, help="ratio below which the exit code is 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args(argv)
    overrides = [*SETTINGS, f"training.max_steps={options.steps}", *options.set]
    with tempfile.TemporaryDirectory(prefix="offbeat-bench-") as home:
        sys.path.append(str(ROOT))  # Where the rewards' process finds this module.
        first = create(load_config(CONFIG, overrides, environ={}), Path(home), "asynchronous")
        config = load_config(CONFIG, [*overrides, "training.max_staleness=0"], environ={})
        second = create(config, Path(home), "synchronous", base=first.base)
        found = {"asynchronous": measure(first), "synchronous": measure(second)}
    ratio = found["asynchronous"].completions_per_second / found["synchronous"].completions_per_second
    if options.json:
        print(json.dumps({**{name: asdict(part) for name, part in found.items()}, "ratio": ratio}))
    else:
        show(found["asynchronous"], "asynchronous")
        show(found["synchronous"], "max_staleness 0")
        print(f"asynchronous / max_staleness 0   {ratio:12.2f}")
    return 0 if ratio >= options.at_least else 1


def measure(run: Run) -> Measured:
    """Figures of one run of real processes."""
    account, outcomes = play(run), outcomes_of(run)
    steady = outcomes[int(len(outcomes) * WARM_UP_SHARE) :]
    seconds = (steady[-1].finished_at_ns - steady[0].finished_at_ns) / 1e9
    steady = steady[1:]
    waits = sorted(waits_of(run))
    return Measured(
        completions_per_second=total(steady, "trajectories") / seconds,
        tokens_per_second=total(steady, "samples") / seconds,
        seconds_per_step=seconds / len(steady),
        wait_p50_ms=waits[len(waits) // 2] * 1e3,
        wait_p99_ms=waits[len(waits) * 99 // 100] * 1e3,
        staleness_mean=total(steady, "staleness_mean") / len(steady),
        staleness_max=account.staleness_max,
        stale=account.stale,
        ledger_difference=account.difference,
    )


async def judge(
    prompts: Sequence[str], completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **columns: Any
) -> list[float]:
    """A verdict on each completion, all waited for at once; says how long each one took."""
    draws = [drawn(f"{prompt}{text}") for prompt, text in zip(prompts, completions, strict=True)]
    took = await asyncio.gather(*(wait(MEDIAN_S * math.exp(SIGMA * NormalDist().inv_cdf(draw))) for draw in draws))
    print("\n".join(f"{WAITED}{seconds:.6f}" for seconds in took), flush=True)
    # Of no meaning, but not equal within a group: groups of equal rewards would not be trained on.
    return [float(drawn(f"verdict {draw}") < 0.5) for draw in draws]


async def wait(seconds: float) -> float:
    """Wait; how long it was."""
    begun = time.perf_counter()
    await asyncio.sleep(seconds)
    return time.perf_counter() - begun


def drawn(text: str) -> float:
    """A number in (0, 1) that the text decides."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48


def waits_of(run: Run) -> list[float]:
    """Seconds of every wait of the run's generators."""
    files = (run.folder / "output").glob("rewards-generator-*.log")
    lines = (line for file in files for line in file.read_text().splitlines())
    return [float(line.removeprefix(WAITED)) for line in lines if line.startswith(WAITED)]


def show(found: Measured, name: str) -> None:
    """One run's figures, a line each."""
    print(f"{name}")
    print(f"  completions per second         {found.completions_per_second:12,.1f}")
    print(f"  written tokens per second      {found.tokens_per_second:12,.1f}")
    print(f"  seconds per step               {found.seconds_per_step:12.3f}")
    print(f"  wait p50 / p99, ms             {found.wait_p50_ms:8.1f} / {found.wait_p99_ms:.1f}")
    print(f"  staleness mean / max, versions {found.staleness_mean:8.2f} / {found.staleness_max}")
    print(f"  dropped as stale               {found.stale:12d}")
    print(f"  ledger difference              {found.ledger_difference:12d}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

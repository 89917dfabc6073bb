"""Wall seconds to the same validation accuracy: an asynchronous run of ours, and TRL's own synchronous GRPOTrainer.

    offbeat bench language [--target 0.65] [--steps N] [--every N] [--set section.key=value ...] [--json]

Both start from the same base folder and have the same prompts, reward, group size, completions per optimiser step,
learning rate, clip range and bound on steps, and two threads: ours one in the trainer's and one in the generator's
process, TRL's both in its one (`--trl-threads`: where other programs work too, one may serve it better). Parameters are
kept every few steps and scored after the runs, greedily, on the same held-out prompts, outside both clocks. TRL's clock
leaves out the copying of parameters too; ours holds the writing of its checkpoints. Both clocks start when the trainer
is ready and nothing is sampled yet; what came before is told apart. Ours leaves groups of equal rewards out of its
batches, as it does by default.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import ROOT, create, outcomes_of, play, start, wait_for
from offbeat.config import load_config
from offbeat.runs import Run
from offbeat.workloads import Policy, Workload, open_workload

CONFIG = ROOT / "deployments" / "arithmetic.yaml"
SETTINGS = (
    "training.batch_size=256",
    "training.max_staleness=1",
    "training.algorithm.learning_rate=3.0e-4",
    "training.algorithm.warmup_steps=20",
    "training.algorithm.lr_schedule=constant",
    "generator.num_generators=1",
    "evaluation.metric=accuracy",
    "evaluation.samples=1",
    "strategy.keep_checkpoints=10000",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One side's way: accuracy by seconds from the moment its trainer was ready, `start_up_s` after its start."""

    start_up_s: float
    points: Sequence[tuple[int, float, float]]  # (step, seconds, accuracy)

    def seconds_to(self, target: float) -> float | None:
        """Seconds to the first kept parameters that reach the target; None where none do."""
        return next((seconds for _, seconds, accuracy in self.points if accuracy >= target), None)


def main(argv: Sequence[str]) -> int:
    """Run and print; 1 when not both reach the target."""
    parser = argparse.ArgumentParser(prog="offbeat bench language", description="Seconds to the same accuracy.")
    parser.add_argument("--target", type=float, default=0.65, help="validation accuracy that is raced to")
    parser.add_argument("--steps", type=int, default=120, help="most optimiser steps of each")
    parser.add_argument("--every", type=int, default=5, help="steps between the parameters that are scored")
    parser.add_argument("--trl-threads", type=int, default=2, help="threads of TRL's process")
    parser.add_argument("--set", action="append", default=[], help="section.key=value", metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args(argv)
    steps = [f"training.max_steps={options.steps}", f"strategy.checkpoint_freq={options.every}"]
    config = load_config(CONFIG, [*SETTINGS, *steps, *options.set], environ={})
    with tempfile.TemporaryDirectory(prefix="offbeat-bench-") as home:
        ours = create(config, Path(home), "ours")
        theirs = create(config, Path(home), "trl", base=ours.base)
        curves = {"offbeat": our_curve(ours), "trl": trl_curve(theirs, threads=options.trl_threads)}
    found = result(curves, options.target)
    print(json.dumps(found)) if options.json else show(curves, found)
    return 0 if found["ratio"] is not None else 1


def our_curve(run: Run) -> Curve:
    """A run of trainer and generator processes, scored from its checkpoints."""
    begun_at_ns = time.time_ns()
    play(run)
    outcomes = {outcome.step: outcome for outcome in outcomes_of(run)}
    first = outcomes[1]
    # The first step's wait begins when the trainer has everything but data.
    ready_at_ns = first.finished_at_ns - int(1e9 * (first.metrics["wait_s"] + first.metrics["step_s"]))
    workload = open_workload(run.config, base=run.base)
    points = [(0, 0.0, accuracy(run, workload, workload.make_policy()))]
    for folder in sorted(run.checkpoints.glob("step-*")):
        if (step := int(folder.name.removeprefix("step-"))) > 0:
            seconds = (outcomes[step].finished_at_ns - ready_at_ns) / 1e9
            points.append((step, seconds, accuracy(run, workload, workload.load_policy(folder / "policy"))))
    return Curve(start_up_s=(ready_at_ns - begun_at_ns) / 1e9, points=points)


def trl_curve(run: Run, *, threads: int) -> Curve:
    """TRL in a process of its own, scored from the parameters that it kept."""
    from safetensors.torch import load_file

    begun_at_ns = time.time_ns()
    wait_for(run, [start(run, "benchmarks.language_trl", str(run.folder), str(threads), name="trl")])
    document = json.loads((run.folder / "trl" / "curve.json").read_text(encoding="utf-8"))
    workload = open_workload(run.config, base=run.base)
    policy = workload.make_policy()
    points = [(0, 0.0, accuracy(run, workload, policy))]
    for step, seconds in document["seconds"].items():
        policy.load_weights(load_file(run.folder / "trl" / f"step-{step}.safetensors"))
        points.append((int(step), seconds, accuracy(run, workload, policy)))
    return Curve(start_up_s=(document["ready_at_ns"] - begun_at_ns) / 1e9, points=points)


def accuracy(run: Run, workload: Workload, policy: Policy) -> float:
    """Share of right greedy completions of the held-out prompts that the evaluation's seed draws."""
    evaluation = run.config.evaluation
    scores = workload.evaluate(policy, num_episodes=evaluation.episodes, seed=evaluation.seed)
    return float(scores.values.mean())


def result(curves: dict[str, Curve], target: float) -> dict[str, Any]:
    """What is compared: seconds to the target, without and with start-up; TRL's over ours, None where one misses it."""
    seconds = {name: curve.seconds_to(target) for name, curve in curves.items()}
    whole = {name: _plus(seconds[name], curve.start_up_s) for name, curve in curves.items()}
    return {
        "target": target,
        "seconds": seconds,
        "seconds_with_start_up": whole,
        "ratio": _ratio(seconds),
        "ratio_with_start_up": _ratio(whole),
        "curves": {name: asdict(curve) for name, curve in curves.items()},
    }


def _plus(seconds: float | None, more: float) -> float | None:
    return None if seconds is None else seconds + more


def _ratio(seconds: dict[str, float | None]) -> float | None:
    ours, theirs = seconds["offbeat"], seconds["trl"]
    return None if ours is None or theirs is None else theirs / ours if ours else 1.0


def show(curves: dict[str, Curve], found: dict[str, Any]) -> None:
    """Both curves step by step, then what is compared."""
    print("step      offbeat: s   accuracy        trl: s   accuracy")
    sides = [{step: point for step, *point in curve.points} for curve in curves.values()]
    for step in sorted(set().union(*sides)):
        cells = [f"{side[step][0]:12.1f} {side[step][1]:10.3f}" if step in side else " " * 23 for side in sides]
        print(f"{step:5d} {cells[0]} {cells[1][:1]} {cells[1][1:]}")
    print(f"seconds to {found['target']:<6}              offbeat      trl    trl / offbeat")
    start_up = {name: curve.start_up_s for name, curve in curves.items()}
    for name, seconds, ratio in (
        ("from the trainer's being ready", found["seconds"], found["ratio"]),
        ("start-up before it", start_up, None),
        ("together", found["seconds_with_start_up"], found["ratio_with_start_up"]),
    ):
        cells = ["-" if value is None else f"{value:.1f}" for value in (seconds["offbeat"], seconds["trl"])]
        print(f"  {name:<31}{cells[0]:>8} {cells[1]:>8}    {'' if ratio is None else f'{ratio:.2f}':>8}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

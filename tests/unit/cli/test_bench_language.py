"""The race to the same accuracy: how it is decided, and TRL's side of it on a model of a few parameters."""

import json
import sys
from itertools import pairwise

import pytest

from offbeat.config import load_config
from offbeat.runs import Run

pytest.importorskip("trl")

SMALL = (
    "workload.model.made.hidden_size=8",
    "workload.model.made.num_layers=1",
    "workload.model.made.num_heads=1",
    "workload.model.made.intermediate_size=8",
    "workload.model.warm_up.steps=1",
    "workload.group_size=2",
    "workload.num_groups=4",
    "training.batch_size=8",
    "evaluation.episodes=4",
)


@pytest.fixture
def language(monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    return pytest.importorskip("benchmarks.language")


def curves(language, ours, theirs):
    return {
        "offbeat": language.Curve(start_up_s=10.0, points=ours),
        "trl": language.Curve(start_up_s=6.0, points=theirs),
    }


def test_the_first_parameters_that_reach_the_target_decide(language):
    ours = [(0, 0.0, 0.4), (5, 10.0, 0.7), (10, 20.0, 0.6)]
    theirs = [(0, 0.0, 0.4), (5, 30.0, 0.69), (10, 34.0, 0.8)]
    found = language.result(curves(language, ours, theirs), 0.7)
    assert found["seconds"] == {"offbeat": 10.0, "trl": 34.0}
    assert found["ratio"] == 3.4
    assert found["seconds_with_start_up"] == {"offbeat": 20.0, "trl": 40.0}
    assert found["ratio_with_start_up"] == 2.0


def test_a_side_that_misses_the_target_has_no_ratio(language, capsys):
    both = curves(language, [(0, 0.0, 0.4)], [(0, 0.0, 0.4), (5, 30.0, 0.9)])
    found = language.result(both, 0.7)
    assert found["seconds"] == {"offbeat": None, "trl": 30.0}
    assert found["ratio"] is None
    language.show(both, found)
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].split() == ["5", "30.0", "0.900"]
    assert shown[4].split()[-2:] == ["-", "30.0"]


def test_trl_gets_the_settings_of_the_run(language, home):
    theirs = pytest.importorskip("benchmarks.language_trl")
    config = load_config(language.CONFIG, language.SETTINGS, environ={})
    given = theirs.arguments(Run(run_id="trl", config=config, home=home))
    assert (given.per_device_train_batch_size, given.gradient_accumulation_steps, given.num_iterations) == (256, 1, 1)
    assert given.generation_batch_size == 256  # every optimiser step samples its own batch
    assert (given.num_generations, given.max_completion_length) == (8, 4)
    assert (given.learning_rate, given.warmup_steps, given.lr_scheduler_type) == (3e-4, 20, "constant_with_warmup")
    assert (given.loss_type, given.epsilon, given.epsilon_high, given.beta) == ("dapo", 0.2, 0.28, 0.0)
    assert (given.max_grad_norm, given.weight_decay) == (1.0, 0.0)
    assert not given.use_vllm


@pytest.mark.slow
def test_both_sides_start_from_the_same_and_are_scored_alike(invoke, language):
    settings = [part for setting in SMALL for part in ("--set", setting)]
    result = invoke("bench", "language", "--steps", 2, "--every", 1, "--target", 0, "--json", *settings)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    ours, theirs = (found["curves"][name]["points"] for name in ("offbeat", "trl"))
    assert [step for step, _, _ in ours] == [step for step, _, _ in theirs] == [0, 1, 2]
    assert ours[0] == theirs[0]
    assert all(later[1] > earlier[1] for points in (ours, theirs) for earlier, later in pairwise(points))
    assert found["curves"]["trl"]["start_up_s"] > 0

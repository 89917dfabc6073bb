"""The benchmark of rewards that wait, on two runs of a few steps: what it prints, not how fast this machine is."""

import asyncio
import json
import sys

import pytest

SMALL = (
    "workload.model.made.hidden_size=8",
    "workload.model.made.num_layers=1",
    "workload.model.made.num_heads=1",
    "workload.model.made.intermediate_size=8",
    "workload.group_size=2",
    "workload.num_groups=2",
    "training.batch_size=4",
)


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    return pytest.importorskip("benchmarks.waiting")


def test_the_same_text_waits_alike_and_the_median_is_as_said(waiting, monkeypatch, capsys):
    asked = []

    async def at_once(seconds):
        asked.append(seconds)

    monkeypatch.setattr(waiting.asyncio, "sleep", at_once)
    texts = [f"text {n}" for n in range(999)]
    for _ in range(2):
        verdicts = asyncio.run(waiting.judge(["p"] * len(texts), texts, [[1]] * len(texts), answer=texts))
        assert set(verdicts) == {0.0, 1.0}
    assert asked[:999] == asked[999:]
    assert sorted(asked[:999])[499] == pytest.approx(waiting.MEDIAN_S, rel=0.15)
    assert max(asked) > 5 * waiting.MEDIAN_S
    assert capsys.readouterr().out.count(waiting.WAITED) == 2 * 999


@pytest.mark.slow
def test_two_runs_are_measured_and_every_trajectory_is_accounted_for(invoke, waiting):
    settings = [part for setting in SMALL for part in ("--set", setting)]
    result = invoke("bench", "waiting", "--steps", 4, "--at-least", 0, "--json", *settings)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    for name in ("asynchronous", "synchronous"):
        assert found[name]["ledger_difference"] == 0
        assert found[name]["completions_per_second"] > 0
        assert 0 < found[name]["wait_p50_ms"] <= found[name]["wait_p99_ms"]
    assert found["synchronous"]["staleness_max"] == 0
    assert found["ratio"] > 0

"""Metrics reach MLflow once each, also when it was away in between."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from offbeat.config import parse_config
from offbeat.errors import RegistryUnavailable
from offbeat.ledger import Outcome
from offbeat.ledger.rows import row_entry
from offbeat.lifecycle.relay import MetricsRelay
from offbeat.runs import Run


class FakeRegistry:
    def __init__(self) -> None:
        self.away = False
        self.started: list[str | None] = []
        self.sent: list[int] = []

    def start_run(self, name: str, *, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None) -> str:
        self._answer()
        self.started.append(run_id)
        assert params["training.max_steps"] == 10000
        return run_id or "mlflow-1"

    def log_metrics(self, run_id: str, rows: Sequence[tuple[int, int, Mapping[str, float]]]) -> int:
        self._answer()
        self.sent += [step for step, _, _ in rows]
        return 0

    def _answer(self) -> None:
        if self.away:
            raise RegistryUnavailable("no answer")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(parse_config({"name": "relayed"}), home=tmp_path)


def finish(run: Run, *steps: int) -> None:
    log = run.open_log()
    rows = [
        Outcome(epoch=1, step=n, version_in=n, version_out=n, digest="", metrics={"x": 1.0}, finished_at_ns=n)
        for n in steps
    ]
    log.append("plan", 0, [row_entry(row) for row in rows])
    log.close()


def test_each_step_is_sent_once_and_the_run_is_remembered(run: Run) -> None:
    registry = FakeRegistry()
    relay = MetricsRelay(run, lambda _: registry, tags={})  # type: ignore[arg-type,return-value]
    finish(run, 1, 2)
    assert relay.push()
    finish(run, 3)
    assert relay.push()
    relay.close()
    again = MetricsRelay(run, lambda _: registry, tags={})  # type: ignore[arg-type,return-value]
    assert again.mlflow_id() == "mlflow-1"
    again.close()
    assert registry.sent == [1, 2, 3]
    assert registry.started == [None, "mlflow-1"]


def test_what_mlflow_did_not_take_is_sent_when_it_is_back(run: Run) -> None:
    registry = FakeRegistry()
    relay = MetricsRelay(run, lambda _: registry, tags={})  # type: ignore[arg-type,return-value]
    registry.away = True
    finish(run, 1)
    assert not relay.push()
    finish(run, 2)
    assert not relay.push()
    registry.away = False
    assert relay.push()
    relay.close()
    assert (registry.sent, relay.num_failures) == ([1, 2], 2)
    assert relay.last is not None
    assert relay.last.step == 2


def test_a_damaged_log_does_not_end_the_one_who_watches(run: Run) -> None:
    relay = MetricsRelay(run, lambda _: FakeRegistry(), tags={})  # type: ignore[arg-type,return-value]
    finish(run, 1)
    (run.folder / "log" / "plan.db").unlink()
    assert not relay.push()
    assert relay.num_failures == 1
    relay.close()

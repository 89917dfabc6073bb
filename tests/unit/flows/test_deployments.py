"""prefect.yaml and deployments/ belong together, and every deployment says what it is."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from offbeat.config import load_config

ROOT = Path(__file__).parents[3]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
LIFECYCLES = [deployment for deployment in DEPLOYMENTS if deployment["entrypoint"] == "flows.lifecycle.lifecycle"]
CONFIGURATIONS = sorted((ROOT / "deployments").glob("*.yaml"))


def test_every_run_configuration_has_a_deployment_and_the_other_way_round() -> None:
    configured = {path.stem for path in CONFIGURATIONS}
    assert {deployment["name"] for deployment in LIFECYCLES} == configured
    assert all(deployment["parameters"] == {"config": deployment["name"]} for deployment in LIFECYCLES)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_run_configuration_loads_and_carries_its_file_name(path: Path) -> None:
    assert load_config(path, environ={}).name == path.stem


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_every_deployment_is_described_tagged_and_opens_a_flow(deployment: dict[str, Any]) -> None:
    module, _, name = deployment["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), name)
    assert flow.name == name
    assert deployment["description"]
    assert "offbeat" in deployment["tags"]
    assert deployment["work_pool"] == {"name": "offbeat-process"}


def test_every_schedule_is_asleep() -> None:
    schedules = [schedule for deployment in LIFECYCLES for schedule in deployment["schedules"]]
    assert len(schedules) >= len(LIFECYCLES)
    assert not any(schedule["active"] for schedule in schedules)


@pytest.mark.parametrize("module", ["lifecycle", "generator", "trainer", "evaluate", "cleanup"])
def test_every_parameter_has_a_type_and_a_description(module: str) -> None:
    flow = getattr(importlib.import_module(f"flows.{module}"), module)
    properties = parameter_schema(flow.fn).properties
    assert set(properties) == set(inspect.signature(flow.fn).parameters)
    assert all(found.get("description") for found in properties.values())


def test_the_form_knows_bounds() -> None:
    from flows.generator import generator
    from flows.lifecycle import lifecycle

    run_id = parameter_schema(lifecycle.fn).properties["run_id"]
    assert run_id["anyOf"][0]["pattern"].startswith("^(?:[A-Za-z0-9]")
    assert parameter_schema(generator.fn).properties["index"]["minimum"] == 0

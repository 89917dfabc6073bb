"""Provision: a run's folder and frozen configuration."""

from typing import Any

from prefect import task

from offbeat.lifecycle.provisioning import provision_run
from offbeat.runs import Run
from tasks.patience import ONCE


@task(name="provision", timeout_seconds=120, **ONCE)
def provision(config: str, overrides: dict[str, Any] | list[str], run_id: str | None, resume: bool) -> Run:
    """Create the run, or open the one to resume."""
    return provision_run(config, overrides, run_id=run_id, resume=resume)

"""From what a person asked for to a run that can begin: a new folder, or an existing one to continue."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offbeat.config import load_config
from offbeat.errors import ConfigError
from offbeat.runs import Run
from offbeat.workloads import open_workload

CONFIGURATIONS = Path("deployments")
BASELINE_FILE = "baseline.json"


def provision_run(
    config: str, overrides: Mapping[str, Any] | Iterable[str], *, run_id: str | None = None, resume: bool = False
) -> Run:
    """Create a run, or open the one to resume with its frozen configuration and the overrides.

    Raises ConfigError for a wrong configuration or run id, ResumeRefused for a change that a resumed run cannot take,
    NotReady when the folder cannot be written, RunLocked when the run to resume is at work.
    """
    if not resume:
        return Run.create(load_config(find_config(config), overrides), run_id=run_id)
    if run_id is None:
        raise ConfigError("resume needs run_id, the id of the run to continue")
    run = Run.open(run_id)
    if not overrides:
        return run
    with run.hold("lifecycle"):  # A run that works must not have its configuration changed.
        return run.changed(load_config(run.config_file, overrides, environ={}))


def prepare_run(run: Run) -> dict[str, float]:
    """Make what learning starts from, once; returns what was measured of it, which `baseline.json` keeps.

    Raises ConfigError for data, a model or a reward that cannot be had.
    """
    kept = run.folder / BASELINE_FILE
    if not kept.exists():
        measures = dict(open_workload(run.config, base=run.base).prepare())
        replacing = kept.with_suffix(".part")
        replacing.write_text(json.dumps(measures, indent=2), encoding="utf-8")
        replacing.replace(kept)
    return read_baseline(run)


def read_baseline(run: Run) -> dict[str, float]:
    """What was measured of version 0; nothing where nothing was."""
    kept = run.folder / BASELINE_FILE
    return dict(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else {}


def find_config(config: str) -> Path:
    """The file that a path, or the bare name of a file in deployments/, stands for."""
    path = Path(config)
    named = CONFIGURATIONS / f"{config}.yaml"
    return named if not path.exists() and named.is_file() else path

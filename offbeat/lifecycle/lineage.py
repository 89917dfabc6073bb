"""Where a model version comes from: the tags that lead from it back to code, configuration, checkpoint and ledger."""

import subprocess
from pathlib import Path

from offbeat.config import config_digest
from offbeat.evaluation import environment_of
from offbeat.runs import Run
from offbeat.trainer.checkpoint import Checkpoint

GIT_TIMEOUT_S = 10.0


def lineage_tags(run: Run, checkpoint: Checkpoint, *, flow_run_id: str) -> dict[str, str]:
    """The tags of the model version that is made of this checkpoint."""
    return {
        "run_id": run.run_id,
        "step": str(checkpoint.step),
        "flow_run_id": flow_run_id,
        "git_revision": git_revision(),
        "config_digest": config_digest(run.config),
        "checkpoint_digest": checkpoint.digest,
        "ledger_range": f"1..{checkpoint.step}",
        "environment": environment_of(run.config),
    }


def git_revision(folder: Path = Path(__file__).parent) -> str:
    """The commit that this code is of, with `-dirty` when files differ from it; 'unknown' outside a checkout."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"

"""Observe: what a person sees of a run in Prefect. Artifacts of one run carry its id in their keys."""

import re
from collections.abc import Mapping, Sequence

from prefect import task
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from offbeat.evaluation import Evaluation, Verdict
from offbeat.ledger import Outcome
from offbeat.lifecycle.report import evaluation_numbers, score_text
from tasks.patience import PATIENT


def artifact_key(run_id: str, kind: str) -> str:
    """A key as Prefect takes it: lower case letters, digits and dashes."""
    return f"{re.sub(r'[^a-z0-9]+', '-', run_id.lower()).strip('-')}-{kind}"


class ProgressArtifact:
    """The run's progress bar in Prefect, and in words what training shows. Each call may raise what the API raises."""

    def __init__(self, run_id: str, max_steps: int) -> None:
        self._run_id = run_id
        self._max_steps = max_steps
        self._id: object = None

    def show(self, last: Outcome | None) -> None:
        """Create the artifact at first, update it from then on."""
        step = last.step if last else 0
        share = min(100.0, 100.0 * step / self._max_steps)
        text = f"step {step} of {self._max_steps}{_words(last)}"
        if self._id is None:
            key = artifact_key(self._run_id, "progress")
            self._id = create_progress_artifact(progress=share, key=key, description=text)
        else:
            update_progress_artifact(artifact_id=self._id, progress=share, description=text)  # type: ignore[arg-type]


def _words(last: Outcome | None) -> str:
    shown = {
        "episode_return_mean": "return {}",
        "training_loss": "loss {:.4g}",
        "staleness_max": "staleness {:.0f}",
        "trajectory_age_s_p50": "age {:.2f} s",
    }
    metrics = last.metrics if last else {}
    values: dict[str, float | str] = dict(metrics)
    if "episode_return_mean" in metrics:
        values["episode_return_mean"] = score_text(metrics["episode_return_mean"])
    return "".join(", " + text.format(values[name]) for name, text in shown.items() if name in values)


@task(name="show-evaluation", timeout_seconds=120, **PATIENT)
def show_evaluation(run_id: str, evaluation: Evaluation, baseline: Mapping[str, float]) -> None:
    """The evaluation as a table artifact, beside what version 0 reached where that was measured."""
    numbers = evaluation_numbers(evaluation)
    rows: list[dict[str, float | str | None]] = [
        {"measure": name, "value": numbers.get(name), "version 0": baseline.get(name)}
        for name in dict.fromkeys([*numbers, *baseline])
    ]
    create_table_artifact(table=rows, key=artifact_key(run_id, "evaluation"), description=f"Evaluation of {run_id}")


@task(name="show-samples", timeout_seconds=120, **PATIENT)
def show_samples(run_id: str, samples: Sequence[Mapping[str, str]]) -> None:
    """A few of the evaluation's examples as a table artifact."""
    rows = [dict(sample) for sample in samples]
    create_table_artifact(table=rows, key=artifact_key(run_id, "samples"), description=f"Examples of {run_id}")


@task(name="show-curve", timeout_seconds=120, **PATIENT)
def show_curve(run_id: str, address: str) -> None:
    """The learning curve's address as a link artifact."""
    key = artifact_key(run_id, "learning-curve")
    create_link_artifact(link=address, key=key, link_text="learning curve", description=f"Learning curve of {run_id}")


@task(name="show-verdict", timeout_seconds=120, **PATIENT)
def show_verdict(run_id: str, verdict: Verdict, links: dict[str, str]) -> None:
    """The gate's verdict with its reasons, and where everything is, as a markdown artifact."""
    lines = [
        f"# {run_id}: {'promoted' if verdict.promote else 'rejected'}",
        "",
        *(f"- {reason}" for reason in verdict.reasons),
        "",
        *(f"- {name}: `{place}`" for name, place in links.items()),
    ]
    create_markdown_artifact(markdown="\n".join(lines), key=artifact_key(run_id, "verdict"))

"""Prepare: what learning starts from, made or fetched once, and scored."""

import logging

from prefect import task

from offbeat.lifecycle.provisioning import prepare_run
from offbeat.runs import Run
from tasks.patience import PATIENT

logger = logging.getLogger(__name__)


@task(name="prepare", **PATIENT)
def prepare(run: Run) -> dict[str, float]:
    """Make version 0 and measure it, where the kind of work asks for that."""
    measures = prepare_run(run)
    if measures:
        logger.info("version 0: %s", ", ".join(f"{name} {value:.4g}" for name, value in measures.items()))
    return measures

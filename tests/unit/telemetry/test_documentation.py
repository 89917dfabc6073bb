from pathlib import Path

import pytest

from offbeat.telemetry import GeneratorMetrics, TrainerMetrics

DOCUMENT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


@pytest.mark.parametrize("metrics", [TrainerMetrics(), GeneratorMetrics()])
def test_every_name_and_key_is_documented(metrics):
    counters = {family.name + "_total" * (family.type == "counter") for family in metrics.collect()}
    missing = [name for name in counters | metrics.snapshot().keys() if f"`{name}" not in DOCUMENT]
    assert not missing

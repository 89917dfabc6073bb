"""A warm-up that stops where enough of what it never learned from is answered right."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from offbeat.errors import ConfigError
from offbeat.workloads.language.base_model import open_model, open_tokenizer
from offbeat.workloads.language.warm_up import share_right, warm_up
from tests.unit.workloads.language.small_models import make_base, run_config, sections

# Every answer is one letter, so that a model soon answers what it has not seen.
ROWS = [(row, {"prompt": f"{row}=", "completion": "x"}) for row in range(80)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base")


def warmed_up(base: Path, rows: Any = ROWS, **settings: Any) -> dict[str, float]:
    described = {"steps": 300, "examples": 40, "batch_size": 16, "learning_rate": 0.01, **settings}
    workload, _ = sections(run_config(workload={"model": {"warm_up": described}}))
    model = open_model(base, workload.model, device="cpu")
    return warm_up(model, open_tokenizer(base), rows, workload, seed=0, device="cpu")


def test_it_stops_once_enough_others_are_right(base: Path) -> None:
    measures = warmed_up(base, stop_at=0.9)
    assert measures["warm_up_right"] >= 0.9
    assert measures["warm_up_steps"] in range(10, 300, 10)


def test_a_goal_that_is_not_reached_costs_nothing_but_a_warning(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        measures = warmed_up(base, stop_at=0.9, steps=10, learning_rate=1e-9)
    assert (measures["warm_up_steps"], measures["warm_up_right"]) == (10, 0)
    assert "warm-up: 0.000 right after all 10 steps, below stop_at 0.9" in caplog.text


def test_without_a_goal_all_steps_are_taken(base: Path) -> None:
    measures = warmed_up(base, steps=12)
    assert measures["warm_up_steps"] == 12
    assert "warm_up_right" not in measures


def test_a_goal_needs_rows_that_are_not_learned_from(base: Path) -> None:
    with pytest.raises(ConfigError, match=r"stop_at looks at .* beyond the first 40 \(examples\), but only 40 have"):
        warmed_up(base, ROWS[:40], stop_at=0.9)


def test_right_is_what_generate_writes_greedily(base: Path) -> None:
    workload, _ = sections(run_config())
    model, tokenizer = open_model(base, workload.model, device="cpu"), open_tokenizer(base)
    examples = []
    for row in range(12):
        prompt = tokenizer(f"{row * 37}+{row}=")["input_ids"]
        written: Any = model.generate(
            input_ids=torch.tensor([prompt]), max_new_tokens=2 + row % 5, do_sample=False, eos_token_id=None
        )
        answer = written[0, len(prompt) :].tolist()
        if row % 3 == 0:  # Another last token: a third is wrong.
            answer[-1] = (answer[-1] + 1) % len(tokenizer)
        examples.append((prompt, answer))
    model.train()
    for batch_size in (1, 5, 12):
        assert share_right(model, tokenizer, examples, batch_size=batch_size) == 8 / 12
    assert model.training

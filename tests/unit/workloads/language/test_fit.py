"""What does not fit a model at hand is refused before anything starts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from offbeat.errors import ConfigError
from offbeat.workloads import open_workload
from offbeat.workloads.language.base_model import open_tokenizer
from offbeat.workloads.language.fit import check_fit, fitting_prompts
from offbeat.workloads.language.prompts import Split
from tests.unit.workloads.language.small_models import make_base, run_config, sections

ROWS = [(0, {"prompt": "1+1=", "answer": "2"}), (1, {"prompt": "x" * 40, "answer": "3"})]


def check(model: Mapping[str, Any], rows: Any = ROWS, *, new_tokens: int = 8, **data: Any) -> None:
    described = {"model": dict(model), "data": {"train": "unused.jsonl", **data}}
    workload, _ = sections(run_config(workload={**described, "sampling": {"max_new_tokens": new_tokens}}))
    check_fit(workload, Split(train=rows[:1], validation=rows[1:]))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base")


def test_what_fits_is_taken(base: Path) -> None:
    check({"source": str(base)}, too_long="fail")
    check({"source": str(base), "lora": {"rank": 2, "target_modules": ["q_proj"]}})
    check({"made": {"max_length": 48}}, too_long="fail")


def test_a_prompt_that_may_not_be_too_long(base: Path) -> None:
    with pytest.raises(ConfigError, match="row 1 has 40 tokens, expected at most 24"):
        check({"made": {"max_length": 32}}, too_long="fail")
    with pytest.raises(ConfigError, match="row 1 has 40 tokens, expected at most 16"):  # 256 positions
        check({"source": str(base)}, new_tokens=240, too_long="fail")
    with pytest.raises(
        ConfigError, match="none of 1 prompts can be used: 0 empty, 1 above 16 tokens"
    ):  # of the validation side
        check({"source": str(base)}, new_tokens=240)


def test_completions_that_leave_a_prompt_no_position(base: Path) -> None:
    for model, positions in (({"source": str(base)}, 256), ({"made": {"max_length": 32}}, 32)):
        with pytest.raises(ConfigError, match=f"max_new_tokens: got 256, but the model has {positions} positions"):
            check(model, new_tokens=256)


def test_layers_that_an_adapter_does_not_find(base: Path) -> None:
    adapter = {"made": {"max_length": 64}, "lora": {"rank": 2, "target_modules": ["no_such"]}}
    for model in (adapter, {**adapter, "source": str(base)}):
        with pytest.raises(ConfigError, match=r"workload\.model\.lora: .*no_such"):
            check(model)


def test_a_chat_template_that_refuses(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "base")
    tokenizer = open_tokenizer(folder)
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    tokenizer.save_pretrained(folder)
    rows = [(7, {"prompt": [{"role": "user", "content": "hi"}]})] * 2
    with pytest.raises(ConfigError, match="the chat template refuses the prompt of row 7: no system role"):
        check({"source": str(folder)}, rows)


def test_a_damaged_folder_and_another_models_tokenizer(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "base")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "vocab_size": 20}))
    with pytest.raises(ConfigError, match="the model knows tokens 0 to 19; its tokenizer does not fit it"):
        check({"source": str(folder)})
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"workload\.model\.source: .* cannot be opened"):
        check({"source": str(folder)})


def test_a_model_that_is_not_here_yet_is_not_asked() -> None:
    check({"source": "somebody/model"}, new_tokens=10_000)


def test_prompts_keep_their_rows(base: Path) -> None:
    workload, _ = sections(run_config())
    prompts = fitting_prompts(ROWS, workload, open_tokenizer(base), AutoConfig.from_pretrained(base))
    assert [(prompt.index, len(prompt.ids)) for prompt in prompts] == [(0, 4), (1, 40)]


def test_the_workloads_check_asks(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for _, row in ROWS))
    settings = {"train": str(data), "validation": str(data), "too_long": "fail"}
    described = {"data": settings, "model": {"made": {"max_length": 32}}, "sampling": {"max_new_tokens": 8}}
    config = run_config(workload={**described, "rewards": {"functions": [{"name": "accuracy"}]}})
    with pytest.raises(ConfigError, match="row 1 has 40 tokens"):
        open_workload(config, base=tmp_path / "base").check()

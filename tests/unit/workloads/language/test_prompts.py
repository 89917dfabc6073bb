"""Prompts: templates, lengths, odd characters, and the split that nothing moves."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from offbeat.config.language import DataConfig, MadeModelConfig
from offbeat.errors import ConfigError
from offbeat.workloads.language.base_model import open_tokenizer
from offbeat.workloads.language.prompts import (
    Prompt,
    Split,
    check_known,
    make_prompts,
    plain_conversation,
    read_split,
)
from offbeat.workloads.language.tokenizers import train_tokenizer
from tests.unit.workloads.language.small_models import make_tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{% if think %}(think){% endif %}"
)
LONG = "x" * 99_990 + "end of it."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return make_tokenizer()


@pytest.fixture(scope="module")
def bytes_tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(["hello"], MadeModelConfig(tokenizer="bpe", vocabulary_size=300))


def _made(prompt: Any, tokenizer: Any, *, max_tokens: int = 1 << 20, **settings: Any) -> Prompt:
    return make_prompts(
        [(7, {"prompt": prompt, "answer": "a"})], DataConfig(**settings), tokenizer, max_tokens=max_tokens
    )[0]


def _text(prompt: Prompt, tokenizer: Any) -> str:
    text: str = tokenizer.decode(prompt.ids)
    return text


def _split(path: Path, rows: list[Any], **settings: Any) -> Split:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return read_split(DataConfig(train=str(path), **settings))


def test_a_text_becomes_its_tokens_and_the_row_its_columns(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = _made("2 + 2 = ", tokenizer)
    assert _text(prompt, tokenizer) == "2 + 2 = "
    assert (prompt.index, prompt.given, dict(prompt.columns)) == (7, "2 + 2 = ", {"answer": "a"})
    assert len(prompt.ids) == 8


def test_a_conversation_without_a_template(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    prompt = _made(messages, tokenizer)
    assert _text(prompt, tokenizer) == "user: hi\nassistant: yes?\nassistant:" == plain_conversation(messages)


def test_a_conversation_through_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    own = make_tokenizer()
    own.chat_template = TEMPLATE
    messages = [{"role": "user", "content": "hi"}]
    assert _text(_made(messages, own), own) == "[user]hi[assistant]"
    assert _text(_made(messages, own, chat_template_kwargs={"think": True}), own) == "[user]hi[assistant](think)"
    assert _text(_made(messages, own, chat_template="never"), own) == "user: hi\nassistant:"
    assert _text(_made("hi", own), own) == "hi"  # a plain text is no conversation


def test_a_template_that_fails_names_the_row(tokenizer: PreTrainedTokenizerBase) -> None:
    own = make_tokenizer()
    own.chat_template = "{{ raise_exception('only users may speak') }}"
    with pytest.raises(ConfigError, match=r"row 7.*only users may speak"):
        _made([{"role": "system", "content": "x"}], own)


def test_the_system_prompt_comes_first_and_only_once(tokenizer: PreTrainedTokenizerBase) -> None:
    said: dict[str, Any] = {"system_prompt": "Be brief."}
    assert _text(_made("hi", tokenizer, **said), tokenizer) == "system: Be brief.\nuser: hi\nassistant:"
    messages = [{"role": "user", "content": "hi"}]
    prompt = _made(messages, tokenizer, **said)
    assert prompt.given == [{"role": "system", "content": "Be brief."}, *messages]
    assert len(messages) == 1  # the row is as it was
    own = [{"role": "system", "content": "Be long."}, *messages]
    assert _made(own, tokenizer, **said).given == own


def test_long_prompts_are_dropped_and_counted(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [(0, {"prompt": LONG}), (1, {"prompt": "hi"}), (2, {"prompt": ""})]
    with caplog.at_level(logging.WARNING):
        made = make_prompts(rows, DataConfig(), tokenizer, max_tokens=512)
    assert [prompt.index for prompt in made] == [1]
    assert "2 of 3 prompts dropped: 1 empty, 1 above 512 tokens (longest 100000)" in caplog.text


def test_long_prompts_keep_their_end(tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        prompt = _made(LONG, tokenizer, max_tokens=10, too_long="truncate_left")
    assert _text(prompt, tokenizer) == "end of it."
    assert prompt.given == LONG
    assert "1 of 1 prompts cut at the left" in caplog.text


def test_long_prompts_fail_by_name(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match="prompt of row 7 has 100000 tokens, expected at most 99999"):
        _made(LONG, tokenizer, max_tokens=99_999, too_long="fail")
    assert len(_made(LONG, tokenizer, max_tokens=100_000, too_long="fail").ids) == 100_000


def test_no_prompt_left_is_a_fault(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match="none of 1 prompts can be used: 0 empty, 1 above 4 tokens"):
        _made("hello", tokenizer, max_tokens=4)


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u05e9\u05dc\u05d5\u05dd \u202eabc",
        "a\x00b",
        "e\u0301\n\t\r",
    ],
)
def test_odd_characters_come_through(text: str, bytes_tokenizer: PreTrainedTokenizerBase) -> None:
    assert _text(_made(text, bytes_tokenizer), bytes_tokenizer) == text
    own = train_tokenizer([text], MadeModelConfig())
    assert _text(_made(text, own), own) == text
    assert len(_made(text, own).ids) == len(text)


def test_characters_that_were_never_seen_are_unknown(tokenizer: PreTrainedTokenizerBase) -> None:
    assert _made("a\u05e9", tokenizer).ids[1] == tokenizer.unk_token_id


def test_a_lone_surrogate_is_no_text(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match=r"row 1 of .*rows\.jsonl: .*lone surrogate"):
        _split(tmp_path / "rows.jsonl", [{"prompt": "fine"}, {"prompt": "a\ud83d"}])
    with pytest.raises(ConfigError, match=r"row 0 of .*rows\.jsonl: .*lone surrogate"):
        _split(tmp_path / "rows.jsonl", [{"prompt": [{"role": "user", "content": "\udc00"}]}])


def test_a_tokenizer_without_a_pad_token_pads_with_its_end(tmp_path: Path) -> None:
    own = make_tokenizer()
    own.pad_token = None
    own.save_pretrained(tmp_path)
    assert open_tokenizer(tmp_path).pad_token == own.eos_token


def test_a_tokenizer_without_any_special_token_cannot_pad(tmp_path: Path) -> None:
    own = make_tokenizer()
    own.pad_token = own.eos_token = own.unk_token = None
    own.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="neither a pad, an end nor an unknown token"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"question": "x"}, "row 1 .* has no column 'prompt', only question"),
        ({"prompt": None}, "row 1 .*: got None as 'prompt'"),
        ({"prompt": 3}, "row 1 .*: got 3 as 'prompt'"),
        ({"prompt": []}, r"row 1 .*: got \[\] as 'prompt'"),
        ({"prompt": ["hi"]}, r"row 1 .*: got \['hi'\] as 'prompt'"),
        ({"prompt": {"role": "user", "content": "x"}}, "row 1 .*: got {'role'.* as 'prompt'"),
        ({"prompt": [{"role": "user"}]}, "row 1 .*expected a text, or a list of messages with role and content"),
        ({"prompt": [{"role": "user", "content": None}]}, "row 1 .*expected a text, or a list"),
    ],
)
def test_malformed_prompts_name_file_and_row(tmp_path: Path, row: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as raised:
        _split(tmp_path / "rows.jsonl", [{"prompt": "fine"}, row])
    assert "rows.jsonl" in str(raised.value)


def test_every_row_is_on_one_side_and_equal_prompts_on_the_same(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n % 200} + 1 = ", "n": n} for n in range(400)]  # every prompt comes twice
    split = _split(tmp_path / "rows.jsonl", rows, validation_share=0.25)
    train, held = ({row["prompt"] for _, row in side} for side in (split.train, split.validation))
    assert not train & held
    assert sorted(index for side in (split.train, split.validation) for index, _ in side) == list(range(400))
    # 200 fair draws at 0.25: four standard deviations are 24.5.
    assert 50 - 25 <= len(held) <= 50 + 25


def test_more_data_moves_no_prompt_to_the_other_side(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1 = "} for n in range(100)]
    few = {row["prompt"] for _, row in _split(tmp_path / "few.jsonl", rows[:60]).validation}
    more = {row["prompt"] for _, row in _split(tmp_path / "more.jsonl", list(reversed(rows))).validation}
    assert few == {prompt for prompt in more if prompt in {row["prompt"] for row in rows[:60]}}


def test_conversations_are_split_by_their_text(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": str(n % 50)}], "n": n} for n in range(100)]
    split = _split(tmp_path / "rows.jsonl", rows, validation_share=0.5)
    train, held = ({row["prompt"][0]["content"] for _, row in side} for side in (split.train, split.validation))
    assert train
    assert held
    assert not train & held


def test_conversations_with_values_beyond_json_are_split_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offbeat_dated_rows.py").write_text(
        "import datetime\n"
        "def make():\n"
        "    for n in range(50):\n"
        "        at = datetime.datetime(2024, 1, 1)\n"
        "        yield {'prompt': [{'role': 'user', 'content': str(n), 'at': at}]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    split = read_split(DataConfig(train="offbeat_dated_rows:make", validation_share=0.5))
    assert len(split.train) + len(split.validation) == 50


def test_a_side_without_prompts_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give more rows, or data\.validation"):
        _split(tmp_path / "rows.jsonl", [{"prompt": "the only one"}])


def test_validation_of_its_own(tmp_path: Path) -> None:
    held = tmp_path / "held.jsonl"
    held.write_text('{"prompt": "b"}\n{"question": "c"}\n')
    with pytest.raises(ConfigError, match=r"row 1 of .*held\.jsonl has no column"):
        _split(tmp_path / "rows.jsonl", [{"prompt": "a"}], validation=str(held))
    held.write_text('{"prompt": "b"}\n')
    split = _split(tmp_path / "rows.jsonl", [{"prompt": "a"}], validation=str(held))
    assert [row for _, row in split.train] == [{"prompt": "a"}]
    assert [row for _, row in split.validation] == [{"prompt": "b"}]


def test_a_token_that_the_model_does_not_know_is_named(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = _made("ab~", tokenizer)
    check_known([prompt], max(prompt.ids) + 1, tokenizer)
    with pytest.raises(ConfigError, match=rf"row 7 has the token '~' \({max(prompt.ids)}\), but the model knows"):
        check_known([prompt], max(prompt.ids), tokenizer)

"""Prompts: rows of data as token ids, split once and for all into training and validation.

    rows ──> chat template or text ──> token ids ──> too long? drop, truncate left, or fail ──> Prompt

Which side a prompt is on depends on its own text alone, so neither another seed nor more data moves it, and the same
prompt is never on both.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from offbeat.config.language import DataConfig
from offbeat.errors import ConfigError
from offbeat.workloads.language.rows import Row, read_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt. index: its row. given: text, or messages with the system prompt. columns: the row's other values."""

    index: int
    given: str | Messages
    ids: tuple[int, ...]
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Rows by side, before any tokenizer."""

    train: Sequence[tuple[int, Row]]
    validation: Sequence[tuple[int, Row]]


def read_split(config: DataConfig) -> Split:
    """Both sides of the data; raises ConfigError when one of them would be empty or a row has no prompt."""
    rows = list(enumerate(read_rows(config.train, arguments=config.arguments)))
    _check_prompts(config.train, rows, config.prompt_column)
    if config.validation is not None:
        held = list(enumerate(read_rows(config.validation, split="validation", arguments=config.arguments)))
        _check_prompts(config.validation, held, config.prompt_column)
        return Split(train=rows, validation=held)
    held_out = [_is_held_out(row[config.prompt_column], config.validation_share) for _, row in rows]
    split = Split(
        train=[row for row, held in zip(rows, held_out, strict=True) if not held],
        validation=[row for row, held in zip(rows, held_out, strict=True) if held],
    )
    if not split.train or not split.validation:
        raise ConfigError(
            f"data: {len(rows)} rows of {config.train} gave {len(split.train)} for training and"
            f" {len(split.validation)} for validation; give more rows, or data.validation"
        )
    return split


def make_prompts(
    rows: Sequence[tuple[int, Row]], config: DataConfig, tokenizer: "PreTrainedTokenizerBase", *, max_tokens: int
) -> list[Prompt]:
    """Tokenised prompts of at most `max_tokens`; raises ConfigError when none is left, or one is too long and may not.

    What was dropped or cut is logged with the number of rows and the longest.
    """
    made, lengths = [], []  # lengths: of the prompts that cannot stay as they are
    for index, row in rows:
        given = given_prompt(row[config.prompt_column], config.system_prompt)
        try:
            ids = tuple(token_ids(given, config, tokenizer))
        except TemplateError as error:
            raise ConfigError(f"data: the chat template refuses the prompt of row {index}: {error}") from error
        if not 0 < len(ids) <= max_tokens:
            lengths.append(len(ids))
            if config.too_long == "fail" and ids:
                raise ConfigError(
                    f"data: the prompt of row {index} has {len(ids)} tokens, expected at most {max_tokens}"
                )
            if config.too_long == "drop" or not ids:
                continue
            ids = ids[-max_tokens:]
        columns = {name: value for name, value in row.items() if name != config.prompt_column}
        made.append(Prompt(index=index, given=given, ids=ids, columns=columns))
    num_empty, longest = lengths.count(0), max(lengths, default=0)
    found = f"{num_empty} empty, {len(lengths) - num_empty} above {max_tokens} tokens (longest {longest})"
    if not made:
        raise ConfigError(f"data: none of {len(rows)} prompts can be used: {found}; see data.max_prompt_tokens")
    if lengths:
        done = "dropped" if config.too_long == "drop" else "cut at the left, or dropped where empty"
        logger.warning("%d of %d prompts %s: %s", len(lengths), len(rows), done, found)
    return made


def check_known(prompts: Sequence[Prompt], num_tokens: int, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raise ConfigError for a token that the model has no embedding for: its tokenizer is another model's."""
    for prompt in prompts:
        if (largest := max(prompt.ids)) >= num_tokens:
            raise ConfigError(
                f"data: the prompt of row {prompt.index} has the token {tokenizer.convert_ids_to_tokens(largest)!r}"
                f" ({largest}), but the model knows tokens 0 to {num_tokens - 1}; its tokenizer does not fit it"
            )


def token_ids(given: str | Messages, config: DataConfig, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """A prompt's token ids, through the chat template where it is a conversation."""
    if isinstance(given, str):
        return _encoded(tokenizer, given, special=True)
    if config.chat_template == "auto" and tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            given, tokenize=False, add_generation_prompt=True, **config.chat_template_kwargs
        )
    else:
        text = plain_conversation(given)
    return _encoded(tokenizer, text, special=False)


def _encoded(tokenizer: "PreTrainedTokenizerBase", text: str, *, special: bool) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=special, truncation=False, verbose=False)["input_ids"]
    return ids


def plain_conversation(messages: Messages) -> str:
    """A conversation for a model without a chat template: one line a message, the assistant's open."""
    return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant:"


def completions_as_given(
    tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]
) -> list[str | Messages]:
    """Completions as rewards take them: a text, or for a conversation the assistant's message."""
    texts = tokenizer.batch_decode([list(row) for row in ids], skip_special_tokens=True)
    return [
        text if isinstance(prompt.given, str) else [{"role": "assistant", "content": text}]
        for text, prompt in zip(texts, prompts, strict=True)
    ]


def columns_of(prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """The rows' other values by column, None where a row lacks one."""
    names = sorted({name for prompt in prompts for name in prompt.columns})
    return {name: [prompt.columns.get(name) for prompt in prompts] for name in names}


def given_prompt(prompt: str | Messages, system_prompt: str | None) -> str | Messages:
    """The prompt as the model is given it: with the system prompt before it, where there is one."""
    if isinstance(prompt, str):
        if system_prompt is None:
            return prompt
        return [{"role": "system", "content": system_prompt}, {"role": "user", "content": prompt}]
    messages = [dict(message) for message in prompt]
    if system_prompt is not None and messages[0].get("role") != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


def _check_prompts(source: str, rows: Sequence[tuple[int, Row]], column: str) -> None:
    for index, row in rows:
        if column not in row:
            raise ConfigError(
                f"data: row {index} of {source} has no column {column!r}, only {', '.join(map(str, row))};"
                " see workload.data.prompt_column"
            )
        prompt = row[column]
        if not is_prompt(prompt):
            raise ConfigError(
                f"data: row {index} of {source}: got {_short(prompt)} as {column!r}, expected a text, or a list of"
                " messages with role and content"
            )
        if not all(map(_is_unicode, _texts_of(prompt))):
            raise ConfigError(f"data: row {index} of {source}: {column!r} has a lone surrogate, which is no character")


def is_prompt(value: Any) -> bool:
    """Whether a value is a text, or a list of one chat message or more."""
    if isinstance(value, str):
        return True
    return isinstance(value, Sequence) and len(value) > 0 and all(_is_message(part) for part in value)


def _is_message(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("role"), str) and isinstance(part.get("content"), str)


def _texts_of(prompt: str | Messages) -> list[str]:
    return [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_held_out(prompt: str | Messages, share: float) -> bool:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64

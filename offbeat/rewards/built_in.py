"""The rewards that come with Offbeat. Each has TRL's signature and returns one number, or None, per completion.

A completion is a text, or a list of chat messages, of which the last one's content counts. The types of keyword-only
parameters are what a configuration's `arguments` are checked against.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveInt

from offbeat.rewards.numbers import last_number, parse_number

Completion = str | Sequence[dict[str, Any]]
Rewards = list[float | None]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
Keywords = Annotated[Sequence[str], Field(min_length=1)]


def text_of(completion: Completion) -> str:
    """What was written: the text itself, or the content of the last message."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1].get("content") or "") if completion else ""


def accuracy(completions: Sequence[Completion], answer: Sequence[Any], **_: Any) -> Rewards:
    """1 where the completion's last number is the reference's, or, for a reference without one, the texts are equal.

    None for a row without a reference.
    """
    return [
        None if wanted is None else _agrees(text_of(got), str(wanted)) for got, wanted in _paired(completions, answer)
    ]


def exact_match(completions: Sequence[Completion], answer: Sequence[Any], **_: Any) -> Rewards:
    """1 where completion and reference are the same text, white space around them aside; None without a reference."""
    return [
        None if wanted is None else float(text_of(got).strip() == str(wanted).strip())
        for got, wanted in _paired(completions, answer)
    ]


def regex_format(completions: Sequence[Completion], *, pattern: Pattern, **_: Any) -> Rewards:
    """1 where the whole completion, white space around it aside, fits the pattern (`.` also matches line ends)."""
    compiled = re.compile(pattern, re.DOTALL)
    return [float(compiled.fullmatch(text_of(got).strip()) is not None) for got in completions]


def length(completion_ids: Sequence[Sequence[int]], *, target: PositiveInt, limit: PositiveInt, **_: Any) -> Rewards:
    """1 up to `target` tokens, falling in a straight line to 0 at `limit` (soft overlong punishment, DAPO eq. 13)."""
    span = max(1, limit - target)
    return [min(1.0, max(0.0, (limit - len(ids)) / span)) for ids in completion_ids]


def bleu(completions: Sequence[Completion], answer: Sequence[Any], **_: Any) -> Rewards:
    """Sentence BLEU against the reference (sacrebleu, effective order), 0 to 1; None without a reference."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(effective_order=True)
    return _scored(metric, completions, answer)


def chrf(completions: Sequence[Completion], answer: Sequence[Any], **_: Any) -> Rewards:
    """Sentence chrF against the reference (sacrebleu), 0 to 1; None without a reference."""
    from sacrebleu.metrics import CHRF

    return _scored(CHRF(), completions, answer)


def keyword(completions: Sequence[Completion], *, keywords: Keywords, **_: Any) -> Rewards:
    """Share of the keywords that the completion holds, whatever their case."""
    wanted = [word.casefold() for word in keywords]
    return [sum(word in text_of(got).casefold() for word in wanted) / len(wanted) for got in completions]


def _agrees(got: str, wanted: str) -> float:
    number = parse_number(wanted)
    number = last_number(wanted) if number is None else number
    if number is None:
        return float(" ".join(got.split()).casefold() == " ".join(wanted.split()).casefold())
    return float(last_number(got) == number)


def _scored(metric: Any, completions: Sequence[Completion], answer: Sequence[Any]) -> Rewards:
    return [
        None if wanted is None else metric.sentence_score(text_of(got), [str(wanted)]).score / 100
        for got, wanted in _paired(completions, answer)
    ]


def _paired(completions: Sequence[Completion], answer: Sequence[Any]) -> list[tuple[Completion, Any]]:
    return list(zip(completions, answer, strict=True))

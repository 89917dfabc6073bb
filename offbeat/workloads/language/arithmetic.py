"""Two-operand arithmetic as prompts: data that a small model can learn from nothing, made instead of downloaded."""

import random
from typing import Any


def problems(
    *, count: int = 10_000, largest: int = 99, operations: str = "+", padded: bool = False, seed: int = 0
) -> list[dict[str, Any]]:
    """`count` different problems such as `12+7=`, each with its `answer`, and the same as a solved `completion`.

    largest: of the operands, from 0 on. operations: any of + - *. padded: all numbers of one width, `12+07=` and `019`.
    Fewer problems are returned where there are no more.
    """
    width = len(str(largest)) if padded else 0
    return [_row(*problem, width=width) for problem in _everything(count, largest, operations, seed)]


def questions(
    *,
    count: int = 10_000,
    largest: int = 9,
    operations: str = "+",
    wording: str = "What is {problem}? Answer with the number only.",
    seed: int = 0,
) -> list[dict[str, Any]]:
    """The same for a model that chats: messages that ask for `{problem}`, such as `3 + 4`, and the `answer`."""
    rows = []
    for left, operation, right in _everything(count, largest, operations, seed):
        asked = wording.format(problem=f"{left} {operation} {right}")
        answer = str(_value(left, operation, right))
        rows.append({"prompt": [{"role": "user", "content": asked}], "answer": answer})
    return rows


def _row(left: int, operation: str, right: int, *, width: int) -> dict[str, Any]:
    value = _value(left, operation, right)
    prompt = f"{left:0{width}d}{operation}{right:0{width}d}="
    return {"prompt": prompt, "answer": str(value), "completion": f"{value:0{width + 1}d}" if width else str(value)}


def _everything(count: int, largest: int, operations: str, seed: int) -> list[tuple[int, str, int]]:
    """At most `count` problems, none twice, in the seed's order."""
    operands = range(largest + 1)
    problems = [(left, operation, right) for operation in operations for left in operands for right in operands]
    random.Random(seed).shuffle(problems)
    return problems[:count]


def _value(left: int, operation: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[operation]

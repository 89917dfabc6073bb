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
    everything = [
        (left, operation, right)
        for operation in operations
        for left in range(largest + 1)
        for right in range(largest + 1)
    ]
    random.Random(seed).shuffle(everything)
    width = len(str(largest)) if padded else 0
    return [_row(*problem, width=width) for problem in everything[:count]]


def _row(left: int, operation: str, right: int, *, width: int) -> dict[str, Any]:
    value = {"+": left + right, "-": left - right, "*": left * right}[operation]
    prompt = f"{left:0{width}d}{operation}{right:0{width}d}="
    return {"prompt": prompt, "answer": str(value), "completion": f"{value:0{width + 1}d}" if width else str(value)}

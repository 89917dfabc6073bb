"""The rewards' own process: `python -m offbeat.rewards.worker`, one JSON line a question, one JSON line an answer.

What a reward prints goes where the parent has put this process's standard error, never into the answers.
"""

import asyncio
import inspect
import json
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from offbeat.errors import ConfigError
from offbeat.rewards.loading import RewardFunction, load_function


def main() -> None:
    """Load the functions that the first line names, then answer until the input ends."""
    # Whatever a reward reads or prints must not touch the pipes that questions and answers go through.
    questions, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    say = _Answers(answers)
    try:
        functions = [load_function(spec["name"], spec["arguments"]) for spec in json.loads(questions.readline())]
    except ConfigError as error:
        traceback.print_exc()
        say({"refused": str(error)})
        return
    say({"ready": os.getpid()})
    pool = ThreadPoolExecutor(max_workers=max(1, len(functions)))
    for line in questions:
        question = json.loads(line)
        for index, function in enumerate(functions):
            pool.submit(_answer, say, function, index, question)
    # A function that hangs must not keep this process alive when its parent has gone.
    os._exit(0)


class _Answers:
    """The pipe back, shared by the functions' threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, answer: dict[str, Any]) -> None:
        text = json.dumps(answer)
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()


def _answer(
    say: Callable[[dict[str, Any]], None], function: RewardFunction, index: int, question: dict[str, Any]
) -> None:
    answer = {"batch": question["batch"], "function": index}
    try:
        values = function(**question["arguments"])
        if inspect.isawaitable(values):
            values = asyncio.run(_awaited(values))
        say(answer | {"values": _plain(values)})
    except BaseException as error:  # noqa: BLE001 - a reward may raise anything, SystemExit among it
        traceback.print_exc()
        say(answer | {"error": _named(error)})


async def _awaited(values: Any) -> Any:
    return await values


def _plain(values: Any) -> list[float | None]:
    listed: Sequence[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return [None if value is None else float(value) for value in listed]


def _named(error: BaseException) -> str:
    """Type and place; the message may hold what nobody should read in a log, and stands in this process's output."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


if __name__ == "__main__":
    main()

"""The rewards' own process: `python -m offbeat.rewards.worker`, one JSON line a question, one JSON line an answer.

A plain function works on one batch at a time in a thread of its own. An async one has an event loop of its own, on
which it waits for as many batches as are asked; there `timeout_s` cuts it off without ending the process.
What a reward prints goes where the parent has put this process's standard error, never into the answers.
"""

import asyncio
import functools
import inspect
import json
import os
import signal
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from offbeat.errors import ConfigError
from offbeat.rewards.loading import RewardFunction, load_function

Say = Callable[[dict[str, Any]], None]
Take = Callable[[dict[str, Any]], object]


def main() -> None:
    """Load the functions that the first line names, then answer until the input ends."""
    # Whatever a reward reads or prints must not touch the pipes that questions and answers go through.
    questions, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    say = _Answers(answers)
    setting = json.loads(questions.readline())
    try:
        functions = [load_function(spec["name"], spec["arguments"]) for spec in setting["functions"]]
    except ConfigError as error:
        traceback.print_exc()
        say({"refused": str(error)})
        return
    takers = [_taker(say, index, function, setting["timeout_s"]) for index, function in enumerate(functions)]
    say({"ready": os.getpid(), "overlapping": [is_async(function) for function in functions]})
    for line in questions:
        question = json.loads(line)
        for index in question["functions"]:
            takers[index](question)
    # A function that hangs, or what it has forked, must not live on when the parent has gone.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
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


def is_async(function: RewardFunction) -> bool:
    """Whether a function is declared async, be it wrapped in partials or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _taker(say: Say, index: int, function: RewardFunction, timeout_s: float) -> Take:
    """What a question to this function is given to."""
    if not is_async(function):
        pool = ThreadPoolExecutor(max_workers=1)
        return lambda question: pool.submit(_answer, say, function, index, question)
    loop = asyncio.new_event_loop()
    threading.Thread(target=_turn, args=(loop,), daemon=True).start()
    return lambda question: asyncio.run_coroutine_threadsafe(
        _answer_async(say, function, index, question, timeout_s), loop
    )


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except BaseException:  # noqa: BLE001 - SystemExit in a task of a reward's own leaves the loop
            traceback.print_exc()


def _answer(say: Say, function: RewardFunction, index: int, question: dict[str, Any]) -> None:
    answer = {"batch": question["batch"], "function": index}
    try:
        _check_call(function, question["arguments"])
        values = function(**question["arguments"])
        if inspect.isawaitable(values):
            values = asyncio.run(_awaited(values))
        say(answer | {"values": _plain(values)})
    except BaseException as error:  # noqa: BLE001 - a reward may raise anything, SystemExit among it
        traceback.print_exc()
        say(answer | {"error": _named(error)})


async def _answer_async(
    say: Say, function: Callable[..., Coroutine[Any, Any, Any]], index: int, question: dict[str, Any], timeout_s: float
) -> None:
    answer = {"batch": question["batch"], "function": index}
    limit = asyncio.timeout(timeout_s)
    try:
        _check_call(function, question["arguments"])
        async with limit:
            values = await function(**question["arguments"])
        say(answer | {"values": _plain(values)})
    except BaseException as error:  # noqa: BLE001 - a reward may raise anything, SystemExit among it
        traceback.print_exc()
        say(answer | ({"lost": "timeout"} if limit.expired() else {"error": _named(error)}))


async def _awaited(values: Any) -> Any:
    return await values


class _WrongCall(TypeError):
    """The function does not take what it is given; the message has names of arguments and columns alone."""


def _check_call(function: RewardFunction, arguments: dict[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise _WrongCall(f"{error}; it is given {', '.join(sorted(arguments))}") from error


def _plain(values: Any) -> list[float | None]:
    """Numbers or None. Texts and mappings would give some by accident: digits, keys."""
    if isinstance(values, str | bytes | dict):
        raise TypeError(f"got a {type(values).__name__}, expected a list of numbers or None")
    listed: Sequence[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    if texts := [value for value in listed if isinstance(value, str | bytes)]:
        raise TypeError(f"got the text {texts[0]!r}, expected a number or None")
    return [None if value is None else float(value) for value in listed]


def _named(error: BaseException) -> str:
    """Type and place; the message may hold what nobody should read in a log, and stands in this process's output."""
    if isinstance(error, _WrongCall):
        return f"TypeError: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


if __name__ == "__main__":
    main()

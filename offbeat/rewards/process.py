"""Rewards in a process of their own, so that none can stop, hang or read the generator.

A batch has `timeout_s`. A function that has not answered by then, that raised, or that answered something else than one
number per completion, gives NaN for the whole batch; a single None, NaN or infinity is NaN for its completion. Each is
counted by kind. After a hang or a death the next batch gets a new process.
"""

import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from offbeat.errors import ConfigError

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
FaultKind = Literal["exception", "timeout", "died", "wrong_length", "none", "nan", "infinity"]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTable:
    """values: float64 [N, F], NaN where a function gave none. faults: how many values were lost, by kind."""

    values: Array
    faults: Mapping[FaultKind, int] = field(default_factory=dict)


class RewardProcess:
    """Scores batches with F functions. Owned by one thread; `close` ends the process.

    functions: name and arguments of each. output: file that takes what the functions print and raise (mode 0600).
    """

    def __init__(self, functions: Sequence[tuple[str, Mapping[str, Any]]], *, timeout_s: float, output: Path) -> None:
        self._specs = [{"name": name, "arguments": dict(arguments)} for name, arguments in functions]
        self._timeout_s = timeout_s
        self._output = output
        self._batch = 0
        self._worker: _Worker | None = None

    def start(self) -> None:
        """Start the process and load the functions; raises ConfigError for one that cannot be loaded."""
        self._started()

    def score(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
    ) -> RewardTable:
        """Rewards of N completions, N of everything; raises ConfigError only where a function cannot be loaded."""
        worker = self._started()
        self._batch += 1
        arguments = {
            **columns,
            "prompts": list(prompts),
            "completions": list(completions),
            "completion_ids": [list(map(int, ids)) for ids in completion_ids],
        }
        answers = worker.ask(self._batch, arguments, len(self._specs), self._timeout_s)
        died = worker.ended
        if died or len(answers) < len(self._specs):
            self.close()
        return self._table(answers, len(completions), died=died)

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = None

    def _started(self) -> "_Worker":
        if self._worker is None:
            self._worker = _Worker(self._specs, self._output)
        return self._worker

    def _table(self, answers: Mapping[int, Mapping[str, Any]], count: int, *, died: bool) -> RewardTable:
        values = np.full((count, len(self._specs)), np.nan)
        faults: Counter[FaultKind] = Counter()
        for index, spec in enumerate(self._specs):
            answer = answers.get(index)
            fault, text = _fault_of(answer, count, died=died)
            if fault is None and answer is not None:
                values[:, index] = _checked(answer["values"], faults)
                continue
            if fault is not None:
                faults[fault] += count
                logger.warning("reward %s: %s; its %d values are left out", spec["name"], text, count)
        return RewardTable(values=values, faults=dict(+faults))


def _fault_of(answer: Mapping[str, Any] | None, count: int, *, died: bool) -> tuple[FaultKind | None, str]:
    if answer is None:
        return ("died", "its process ended") if died else ("timeout", "no answer in time, its process was ended")
    if "error" in answer:
        return "exception", f"it raised {answer['error']}"
    if len(answer["values"]) != count:
        return "wrong_length", f"got {len(answer['values'])} values, expected {count}"
    return None, ""


def _checked(values: Sequence[float | None], faults: Counter[FaultKind]) -> Array:
    """One function's values with NaN for what is none; counts what was lost."""
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    missing = sum(value is None for value in values)
    infinite = np.isinf(array)
    faults["none"] += missing
    faults["nan"] += int(np.isnan(array).sum()) - missing
    faults["infinity"] += int(infinite.sum())
    array[infinite] = np.nan
    return array


class _Worker:
    """One life of the rewards' process."""

    def __init__(self, specs: Sequence[Mapping[str, Any]], output: Path) -> None:
        self.ended = False
        output.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "offbeat.rewards.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                text=True,
                encoding="utf-8",
                errors="surrogatepass",
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            os.close(descriptor)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process.stdout,), name="rewards", daemon=True).start()
        self._write(specs)
        self._await_ready(output)

    def ask(self, batch: int, arguments: Mapping[str, Any], count: int, timeout_s: float) -> dict[int, dict[str, Any]]:
        """Answers by function, as many as came in time."""
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout_s
        # A process that does not even read would block the question itself.
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        self._write({"batch": batch, "arguments": arguments})
        watchdog.cancel()
        while len(answers) < count:
            answer = self._next(deadline)
            if answer is None:
                break
            if answer["batch"] == batch:
                answers[answer["function"]] = answer
        return answers

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _await_ready(self, output: Path) -> None:
        answer = self._next(time.monotonic() + START_TIMEOUT_S)
        if answer is not None and "ready" in answer:
            return
        self.kill()
        if answer is None:
            raise ConfigError(f"the rewards' process did not start within {START_TIMEOUT_S:g} s; see {output}")
        raise ConfigError(f"{answer['refused']}; what it printed is in {output}")

    def _write(self, message: Any) -> None:
        try:
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(message, default=str) + "\n")
                self._process.stdin.flush()
        except BrokenPipeError:
            self.ended = True  # It has ended; the reader's end of file says so to the one who waits.

    def _next(self, deadline: float) -> dict[str, Any] | None:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            self.ended = True
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self, stream: IO[str]) -> None:
        try:
            for line in stream:
                self._lines.put(line)
        except ValueError:
            return  # closed by `kill`
        self._lines.put(None)

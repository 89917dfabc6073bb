"""One life of the rewards' process, asked by several threads at once, and who is to blame for its end.

    ask(batch 1) ──┐            ┌── plain function: one batch at a time, the others queue
    ask(batch 2) ──┼──pipe──> worker
    ask(batch 3) ──┘            └── async function: every batch at once, each cut off by the worker itself

A batch's time on a plain function begins when those before it have been answered. Whose function is overdue is known
there, and so is who asked when a process with one open question dies. Otherwise the end is `unclear`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from offbeat.errors import ConfigError

START_TIMEOUT_S = 120.0
# What a worker that is alive needs to say that it has cut an async function off.
GRACE_S = 5.0

# whole: all answered. overdue: this batch's `late` functions had no answer in time. died: of this batch, for no other
# was open. other: ended for another batch's sake. unclear: it may have been this batch or another.
Fate = Literal["whole", "overdue", "died", "other", "unclear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of a question: answers by function, and why there are no more."""

    answers: Mapping[int, Mapping[str, Any]]
    fate: Fate
    late: frozenset[int] = frozenset()


@dataclass(slots=True, kw_only=True)
class _Question:
    """An open question. begun: when the time of each unanswered function began; None while others are before it."""

    begun: dict[int, float | None]
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)


class Life:
    """A process with its functions loaded; raises ConfigError when one cannot be. Thread-safe.

    overlapping: which functions take several batches at once.
    """

    def __init__(self, specs: Sequence[Mapping[str, Any]], *, timeout_s: float, output: Path) -> None:
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._open: dict[int, _Question] = {}
        self._first: dict[str, Any] | None = None
        self._ended = False
        self._open_at_end: frozenset[int] = frozenset()
        self._culprit: int | None = None
        self._killed = False
        self._process = _start(output)
        threading.Thread(target=self._read, args=(self._process.stdout,), name="rewards", daemon=True).start()
        threading.Thread(target=self._outlive, name="rewards-end", daemon=True).start()
        self._write({"functions": specs, "timeout_s": timeout_s})
        self.overlapping = self._await_ready(output)

    def ask(self, batch: int, arguments: Mapping[str, Any], functions: Sequence[int]) -> Answered:
        """Have these functions score a batch; returns when all have answered, or no more answers will come."""
        question = _Question(begun=dict.fromkeys(functions))
        with self._writing:  # The order in which questions are open is the one in which they are read.
            with self._changed:
                self._open[batch] = question
                self._begin_clocks()
            # A process that does not even read would block the question itself.
            watchdog = threading.Timer(self._timeout_s, self._end_processes)
            watchdog.start()
            self._write({"batch": batch, "functions": list(functions), "arguments": arguments})
            watchdog.cancel()
        with self._changed:
            late = self._await_answers(batch, question)
            fate = self._fate(batch, question)
            del self._open[batch]
            return Answered(answers=question.answers, fate=fate, late=late)

    def kill(self) -> None:
        """End the process and all that it started; whoever asks is told."""
        self._end_processes()
        self._process.wait()
        with self._writing:
            if self._process.stdin is not None:
                with suppress(BrokenPipeError):
                    self._process.stdin.close()
        with self._changed:
            self._end()

    def _outlive(self) -> None:
        """After its end nothing that it forked may hold on to the pipe, or the end would go unnoticed."""
        self._process.wait()
        self._end_processes()

    def _end_processes(self) -> None:
        # Functions may fork; what they leave would keep the pipes open. Once only: the number may be another's later.
        if not self._killed:
            self._killed = True
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _await_answers(self, batch: int, question: _Question) -> frozenset[int]:
        """Wait for the end of a question; returns the functions that this batch is to blame for."""
        while question.begun and not self._ended:
            limits = {
                function: begun + self._timeout_s + (GRACE_S if self.overlapping[function] else 0.0)
                for function, begun in question.begun.items()
                if begun is not None
            }
            now = time.monotonic()
            late = frozenset(function for function, limit in limits.items() if limit <= now)
            if late:
                return self._overdue(batch, late)
            self._changed.wait(min(limits.values()) - now if limits else None)
        return frozenset()

    def _overdue(self, batch: int, late: frozenset[int]) -> frozenset[int]:
        """End the process for the sake of this batch, or for nobody's where others were inside the same function."""
        certain = frozenset(function for function in late if self._is_alone_in(function))
        self._culprit = batch if certain else None
        self._end()
        self._end_processes()
        return certain

    def _is_alone_in(self, function: int) -> bool:
        askers = sum(function in question.begun for question in self._open.values())
        return not self.overlapping[function] or askers == 1

    def _fate(self, batch: int, question: _Question) -> Fate:
        if not question.begun:
            return "whole"
        if self._culprit is not None:
            return "overdue" if self._culprit == batch else "other"
        return "died" if self._open_at_end <= {batch} else "unclear"

    def _begin_clocks(self) -> None:
        """A function that takes one batch at a time works on the oldest; one that overlaps, on all."""
        now, taken = time.monotonic(), set[int]()
        for question in self._open.values():
            for function, begun in question.begun.items():
                if begun is None and (self.overlapping[function] or function not in taken):
                    question.begun[function] = now
                taken.add(function)

    def _end(self) -> None:
        if not self._ended:
            self._ended, self._open_at_end = True, frozenset(self._open)
            self._changed.notify_all()

    def _await_ready(self, output: Path) -> list[bool]:
        with self._changed:
            self._changed.wait_for(lambda: self._first is not None or self._ended, START_TIMEOUT_S)
            first, ended = self._first, self._ended
        if first is not None and "ready" in first:
            return list(first["overlapping"])
        self.kill()
        if ended and first is None:
            raise ConfigError(f"the rewards' process ended with {self._process.returncode} as it began; see {output}")
        if first is None:
            raise ConfigError(f"the rewards' process did not start within {START_TIMEOUT_S:g} s; see {output}")
        raise ConfigError(f"{first['refused']}; what it printed is in {output}")

    def _write(self, message: Any) -> None:
        text = json.dumps(message, default=str) + "\n"
        # Where it has ended, or been closed, the reader says so to the one who waits.
        with suppress(BrokenPipeError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(text)
                self._process.stdin.flush()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._take(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._end()

    def _take(self, answer: dict[str, Any]) -> None:
        if "batch" not in answer:
            self._first = answer
            return
        question = self._open.get(answer["batch"])
        if question is not None and question.begun.pop(answer["function"], -1.0) != -1.0:
            question.answers[answer["function"]] = answer
            self._begin_clocks()


def _start(output: Path) -> "subprocess.Popen[str]":
    output.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "offbeat.rewards.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=descriptor,
            text=True,
            encoding="utf-8",
            errors="surrogatepass",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    finally:
        os.close(descriptor)

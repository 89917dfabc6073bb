"""Rewards in a process of their own, so that none can stop, hang or read the generator.

A batch has `timeout_s` with each function. A function that has not answered by then, that raised, or that answered
something else than one number per completion, gives NaN for the whole batch; a single None, NaN or infinity is NaN for
its completion. Each is counted by kind. After a hang or a death the process is started anew, and what other batches
had not been answered is asked again: of every batch alone, where it is not known which of them it was.
"""

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offbeat.rewards.life import Answered, Life

logger = logging.getLogger(__name__)

FaultKind = Literal["exception", "timeout", "died", "wrong_length", "none", "nan", "infinity"]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTable:
    """values: float64 [N, F], NaN where a function gave none. faults: how many values were lost, by kind."""

    values: Array
    faults: Mapping[FaultKind, int] = field(default_factory=dict)


class RewardProcess:
    """Scores batches with F functions, those of several threads at once. `close` ends the process.

    functions: name and arguments of each. output: file that takes what the functions print and raise (mode 0600).
    """

    def __init__(self, functions: Sequence[tuple[str, Mapping[str, Any]]], *, timeout_s: float, output: Path) -> None:
        self._specs = [{"name": name, "arguments": dict(arguments)} for name, arguments in functions]
        self._timeout_s = timeout_s
        self._output = output
        self._batches = itertools.count(1)
        self._turns = _Turns()
        self._lock = threading.Lock()
        self._life: Life | None = None
        self._overlaps = False
        self._closings = 0

    @property
    def overlaps(self) -> bool:
        """Whether asking for several batches at once is of use: some function is async. False before the start."""
        return self._overlaps

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
        """Rewards of N completions, N of everything; raises ConfigError only where a function cannot be loaded.

        All NaN, and no fault, when the process is closed meanwhile.
        """
        arguments = {
            **columns,
            "prompts": list(prompts),
            "completions": list(completions),
            "completion_ids": [list(map(int, ids)) for ids in completion_ids],
        }
        answers = self._answers(next(self._batches), arguments)
        return self._table(answers, len(completions))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._closings += 1
            if self._life is not None:
                self._life.kill()
            self._life = None

    def _answers(self, batch: int, arguments: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
        """An answer of each function, `lost` where there is none; asks again for what another batch has ended."""
        closings = self._closings
        answers: dict[int, Mapping[str, Any]] = {}
        alone = False
        while missing := [index for index in range(len(self._specs)) if index not in answers]:
            with self._turns.taken(alone=alone):
                if self._closings != closings:
                    return answers
                life = self._started()
                answered = life.ask(batch, arguments, missing)
            answers |= answered.answers
            if answered.fate == "whole":
                return answers
            self._discard(life)
            answers |= self._losses(answered, missing) if self._closings == closings else {}
            alone = alone or answered.fate == "unclear"
        return answers

    def _losses(self, answered: Answered, asked: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        unanswered = [index for index in asked if index not in answered.answers]
        if answered.fate == "died":
            return {index: {"lost": "died"} for index in unanswered}
        return {index: {"lost": "timeout"} for index in answered.late}

    def _started(self) -> Life:
        with self._lock:
            if self._life is None:
                self._life = Life(self._specs, timeout_s=self._timeout_s, output=self._output)
                self._overlaps = any(self._life.overlapping)
            return self._life

    def _discard(self, life: Life) -> None:
        """The next one to ask gets a new process."""
        with self._lock:
            if self._life is life:
                life.kill()
                self._life = None

    def _table(self, answers: Mapping[int, Mapping[str, Any]], count: int) -> RewardTable:
        values = np.full((count, len(self._specs)), np.nan)
        faults: Counter[FaultKind] = Counter()
        for index, answer in answers.items():
            fault, text = _fault_of(answer, count)
            if fault is None:
                values[:, index] = _checked(answer["values"], faults)
                continue
            faults[fault] += count
            logger.warning("reward %s: %s; its %d values are left out", self._specs[index]["name"], text, count)
        return RewardTable(values=values, faults=dict(+faults))


class _Turns:
    """Who may ask: many at once, or one alone. Whoever wants to be alone waits for no newcomers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._wishes = 0  # of those who are, or want to be, alone

    @contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        with self._changed:
            self._wishes += alone
            self._changed.wait_for(lambda: self._inside == 0 if alone else self._wishes == 0)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._wishes -= alone
                self._changed.notify_all()


def _fault_of(answer: Mapping[str, Any], count: int) -> tuple[FaultKind | None, str]:
    if answer.get("lost") == "died":
        return "died", "its process ended"
    if "lost" in answer:
        return "timeout", "no answer in time"
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

"""What a running lifecycle shows meanwhile: a live line on a terminal, a plain line every few seconds elsewhere.

A thread reads what the trainer has written to the plan and what the processes say of themselves; it asks nobody and
holds nothing up. A log or store that is away for a moment leaves the last numbers standing.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offbeat.cli.output import short_number
from offbeat.errors import OffbeatError

if TYPE_CHECKING:
    from offbeat.runs import Run

LIVE_INTERVAL_S = 0.5
# Who starts is said sooner than how far they are.
LOOK_INTERVAL_S = 1.0
PLAIN_INTERVAL_S = 5.0


# Shows a view; the second argument says that it is the last one.
Show = Callable[["View", bool], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is to see of a run at one moment; None where nothing is known yet.

    started: one line for each process that has begun since, oldest first.
    """

    step: int = 0
    max_steps: int = 0
    episode_return: float | None = None
    samples_per_second: float | None = None
    staleness: float | None = None
    age_s: float | None = None
    generators: int = 0
    generators_busy: float | None = None
    finished: bool = False
    started: tuple[str, ...] = ()

    def text(self) -> str:
        """Everything but the steps, in one line."""
        from offbeat.lifecycle.report import score_text

        parts = (
            ("return {}", None if self.episode_return is None else score_text(self.episode_return)),
            ("{} samples/s", None if self.samples_per_second is None else short_number(self.samples_per_second)),
            ("staleness {:.0f}", self.staleness),
            ("age {:.2f} s", self.age_s),
            ("{} generator" + "s" * (self.generators != 1), self.generators or None),
            # The rest of their time they wait for admission.
            ("busy {:.0%} of their time", self.generators_busy),
        )
        return "  ".join(pattern.format(value) for pattern, value in parts if value is not None) or "starting"


class Watcher:
    """Follows one run. Owned by one thread; `close` gives the log and store back."""

    def __init__(self, run: "Run") -> None:
        self._log = run.open_log()
        self._store = run.open_store()
        self._position = 0
        self._since_ns = time.time_ns()
        self._heard: set[tuple[str, Any]] = set()
        self._view = View(max_steps=run.config.training.max_steps)

    def poll(self) -> View:
        """Look again; what cannot be read now stays as it was."""
        for look in (self._read_steps, self._read_processes):
            try:
                look()
            except OffbeatError:
                continue
        return self._view

    def _read_steps(self) -> None:
        from offbeat.ledger import read_outcomes

        outcomes, self._position = read_outcomes(self._log, self._position)
        if not outcomes:
            return
        last = outcomes[-1]
        # A batch in which no episode ended has no return; the last one that had keeps standing.
        returns = [
            outcome.metrics["episode_return_mean"] for outcome in outcomes if "episode_return_mean" in outcome.metrics
        ]
        self._view = replace(
            self._view,
            step=last.step,
            episode_return=returns[-1] if returns else self._view.episode_return,
            staleness=last.metrics.get("staleness_max"),
            age_s=last.metrics.get("trajectory_age_s_p50"),
            finished=last.step >= self._view.max_steps,
        )

    def _read_processes(self) -> None:
        from offbeat.runs import read_status

        processes = read_status(self._store)
        self._hear(processes)
        generators = [
            status
            for role, status in processes.items()
            if role.startswith("generator-") and status.get("phase") != "stopped"
        ]
        busy = [status["generator_busy_ratio"] for status in generators if "generator_busy_ratio" in status]
        self._view = replace(
            self._view,
            samples_per_second=processes.get("trainer", {}).get("samples_per_second"),
            generators=len(generators),
            generators_busy=sum(busy) / len(busy) if busy else None,
        )

    def _hear(self, processes: Mapping[str, Mapping[str, Any]]) -> None:
        for role, status in processes.items():
            life = (role, status.get("pid"))
            # What a process of an earlier life said last may still stand there.
            if life not in self._heard and status.get("updated_at_ns", 0) >= self._since_ns:
                self._heard.add(life)
                line = f"{role} started  {status.get('http', '')}".rstrip()
                self._view = replace(self._view, started=(*self._view.started, line))

    def close(self) -> None:
        """Give the log and the store back."""
        self._log.close()
        self._store.close()


@contextmanager
def shown_progress(run_id: str, home: Path) -> Iterator[None]:
    """Show the run's progress on standard error while the block runs; the run's folder may not exist yet."""
    stop = threading.Event()
    live = sys.stderr.isatty()
    thread = threading.Thread(
        target=_show_live if live else _show_lines, args=(run_id, home, stop), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def _follow(run_id: str, home: Path, stop: threading.Event, interval_s: float, show: Show) -> None:
    watcher = None
    ended = False
    try:
        while not ended:
            # One more look after the end, so that the last step is shown.
            ended = stop.wait(interval_s)
            watcher = watcher or _try_open(run_id, home)
            if watcher is not None:
                show(watcher.poll(), ended)
    finally:
        if watcher is not None:
            watcher.close()


def _try_open(run_id: str, home: Path) -> Watcher | None:
    from offbeat.runs import Run

    try:
        return Watcher(Run.open(run_id, home=home))
    except OffbeatError:
        return None


def _show_lines(run_id: str, home: Path, stop: threading.Event) -> None:
    lines = _Lines()
    _follow(run_id, home, stop, LOOK_INTERVAL_S, lines.show)


class _Lines:
    """Plain lines: at once who has started, every few seconds how far the run is, and at the end once more."""

    def __init__(self) -> None:
        self._num_started = 0
        self._last = ""
        self._due_s = 0.0

    def show(self, view: View, ended: bool) -> None:
        for line in view.started[self._num_started :]:
            click.echo(line, err=True)
        self._num_started = len(view.started)
        line = f"step {view.step}/{view.max_steps}  {view.text()}"
        if line == self._last or not (ended or time.monotonic() >= self._due_s):
            return
        click.echo(line, err=True)
        self._last, self._due_s = line, time.monotonic() + PLAIN_INTERVAL_S


def _show_live(run_id: str, home: Path, stop: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(20),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4, redirect_stdout=False) as display:
        task = display.add_task("starting", total=None)
        num_started = 0

        def show(view: View, ended: bool) -> None:
            nonlocal num_started
            for line in view.started[num_started:]:
                display.console.print(line, markup=False, highlight=False)
            num_started = len(view.started)
            stage = "  evaluating" if view.finished else ""
            display.update(task, completed=view.step, total=view.max_steps, description=view.text() + stage)

        _follow(run_id, home, stop, LIVE_INTERVAL_S, show)

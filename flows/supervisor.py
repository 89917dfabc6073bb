"""Keeping the children of a run alive: what to start, restart, give up or stop, and when.

    tick ──> ended?  ── finished ──> done
         │           ├─ refused ───> ChildFailed at once: trying again cannot help
         │           └─ else ──────> restart after a pause that doubles, at most `max_restarts` times, then ChildFailed
         └─> alive? ── no progress before the deadline ──> stop it, then kill it, then as above

No process, no Prefect and no clock of its own stands here: all three come in as arguments.
"""

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from offbeat.config.models import LauncherConfig
from offbeat.errors import ChildFailed

logger = logging.getLogger(__name__)

TRAINER = "trainer"
POLL_S = 0.1
# Until its first report a child loads its libraries, which a busy machine makes slow: it has at least this long.
START_WITHIN_S = 240.0

Outcome = Literal["finished", "refused", "failed", "cancelled", "killed"]
Progress = Mapping[str, Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a child ended. refused: its configuration, machine or log is wrong; killed: it ended without a word."""

    outcome: Outcome
    detail: str = ""


class Child(Protocol):
    """One life of one child, wherever it runs."""

    def ending(self) -> Ending | None:
        """How it ended; None while it runs."""

    def stop(self) -> None:
        """Ask it to keep its state and end."""

    def kill(self) -> None:
        """End it now."""


class Launcher(Protocol):
    """Starts children."""

    def ready(self) -> bool:
        """Whether a child could start now; False while what starts children is away."""

    def launch(self, role: str) -> Child | None:
        """Start a child in this role; None when what starts children went away just now."""

    def output_of(self, role: str) -> str:
        """Where a person finds what the child printed."""


class Watched:
    """One role: its present child, and what is known of it."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.child: Child | None = None
        self.done = False
        self.lives = 0
        self.failures = 0
        self.start_at = 0.0
        self.progress: Hashable = None
        self.progress_at = 0.0
        self.reported = False
        self.stopping_since: float | None = None
        self.stopped_for = ""

    def launched(self, child: Child, now: float) -> None:
        """A new life begins."""
        self.child = child
        self.lives += 1
        self.progress_at = now
        self.reported = False
        self.stopping_since, self.stopped_for = None, ""

    def request_stop(self, reason: str, now: float) -> None:
        """Ask the child to end, once."""
        if self.child is not None and self.stopping_since is None:
            self.stopping_since, self.stopped_for = now, reason
            self.child.stop()


class Supervisor:
    """All children of one run. Owned by one thread; `stop` must be called at the end, whatever happened."""

    def __init__(
        self,
        roles: Sequence[str],
        launcher: Launcher,
        limits: LauncherConfig,
        *,
        progress: Callable[[], Progress],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._watched = {role: Watched(role) for role in roles}
        self._launcher = launcher
        self._limits = limits
        self._progress = progress
        self._clock = clock
        self._wait = wait
        self._draining_since: float | None = None

    @property
    def num_restarts(self) -> int:
        """Restarts of all children so far."""
        return sum(max(0, watched.lives - 1) for watched in self._watched.values())

    def tick(self) -> bool:
        """Look at every child once and do what is due; True when all are done.

        Raises ChildFailed when one cannot be kept alive.
        """
        now = self._clock()
        progress = self._progress()
        for watched in self._watched.values():
            self._look_at(watched, progress.get(watched.role), now)
        self._drain(now)
        return all(watched.done for watched in self._watched.values())

    def stop(self) -> None:
        """Stop every child: all are asked at once, and after the grace period those that are left are killed."""
        living = [watched for watched in self._watched.values() if watched.child is not None]
        for watched in living:
            watched.request_stop("the run ends", self._clock())
        deadline = self._clock() + self._limits.stop_grace_s
        while self._clock() < deadline and any(_alive(watched) for watched in living):
            self._wait(POLL_S)
        for watched in living:
            if watched.child is not None and _alive(watched):
                logger.warning("%s did not stop within %g s and is killed", watched.role, self._limits.stop_grace_s)
                watched.child.kill()

    def _look_at(self, watched: Watched, progress: Hashable, now: float) -> None:
        if watched.done:
            return
        if watched.child is None:
            self._launch(watched, now)
            return
        ending = watched.child.ending()
        if ending is not None:
            self._ended(watched, ending, now)
            return
        if progress is not None and progress != watched.progress:
            watched.progress, watched.progress_at, watched.reported = progress, now, True
        self._enforce_deadlines(watched, now)

    def _launch(self, watched: Watched, now: float) -> None:
        if now >= watched.start_at and self._launcher.ready():
            child = self._launcher.launch(watched.role)
            if child is not None:
                watched.launched(child, now)

    def _enforce_deadlines(self, watched: Watched, now: float) -> None:
        limits = self._limits
        if watched.stopping_since is None:
            allowed = (
                limits.progress_deadline_s if watched.reported else max(START_WITHIN_S, limits.progress_deadline_s)
            )
            if now - watched.progress_at > allowed:
                logger.warning(
                    "%s made no progress for %g s and is stopped; if it only needs more time, raise"
                    " launcher.progress_deadline_s",
                    watched.role,
                    allowed,
                )
                watched.request_stop(f"no progress for {allowed:g} s", now)
        elif now - watched.stopping_since > limits.stop_grace_s and watched.child is not None:
            watched.child.kill()

    def _ended(self, watched: Watched, ending: Ending, now: float) -> None:
        watched.child = None
        detail = "; ".join(part for part in (watched.stopped_for, ending.detail) if part) or ending.outcome
        if ending.outcome == "finished" or self._draining_since is not None:
            watched.done = True
            return
        watched.failures += 1
        if ending.outcome == "refused" or watched.failures > self._limits.max_restarts:
            raise ChildFailed(
                f"{watched.role} gave up after {watched.failures} attempt{'s' * (watched.failures > 1)};"
                f" the last one {ending.outcome}: {detail}; its output is in {self._launcher.output_of(watched.role)}"
            )
        self._restart(watched, f"{ending.outcome}: {detail}", now)

    def _restart(self, watched: Watched, why: str, now: float) -> None:
        pause = self._limits.restart_pause_s * 2 ** (watched.failures - 1)
        logger.warning("%s ended (%s); attempt %d in %g s", watched.role, why, watched.failures + 1, pause)
        watched.start_at = now + pause
        if watched.role == TRAINER:
            # Generators that ended because training seemed done are needed again.
            for other in self._watched.values():
                other.done = False

    def _drain(self, now: float) -> None:
        """Once the trainer is done the generators end by themselves, or are stopped after the grace period."""
        trainer = self._watched.get(TRAINER)
        if trainer is None or not trainer.done:
            return
        if self._draining_since is None:
            self._draining_since = now
        for watched in self._watched.values():
            if watched.child is None:
                watched.done = True
            elif now - self._draining_since > self._limits.stop_grace_s:
                watched.request_stop("training is done", now)


def _alive(watched: Watched) -> bool:
    return watched.child is not None and watched.child.ending() is None

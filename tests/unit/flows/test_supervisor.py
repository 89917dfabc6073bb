"""The supervisor with children made of plain values and a clock that is set by hand."""

from collections.abc import Callable

import pytest

from flows.supervisor import Child, Ending, Supervisor
from offbeat.config.models import LauncherConfig
from offbeat.errors import ChildFailed

LIMITS = LauncherConfig(progress_deadline_s=10, max_restarts=2, restart_pause_s=1, stop_grace_s=5)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class FakeChild:
    def __init__(self, *, heeds_stop: bool = True) -> None:
        self.told: Ending | None = None
        self.stopped = self.killed = False
        self._heeds_stop = heeds_stop

    def ending(self) -> Ending | None:
        return self.told

    def stop(self) -> None:
        self.stopped = True
        if self._heeds_stop:
            self.told = self.told or Ending(outcome="cancelled")

    def kill(self) -> None:
        self.killed = True
        self.told = self.told or Ending(outcome="killed", detail="killed by SIGKILL")


class FakeLauncher:
    def __init__(self, make: Callable[[], FakeChild] = FakeChild) -> None:
        self.lives: dict[str, list[FakeChild]] = {}
        self.away = False
        self._make = make

    def ready(self) -> bool:
        return not self.away

    def launch(self, role: str) -> Child | None:
        child = self._make()
        self.lives.setdefault(role, []).append(child)
        return child

    def output_of(self, role: str) -> str:
        return f"output/{role}.log"

    def now(self, role: str) -> FakeChild:
        return self.lives[role][-1]


class Scene:
    """A trainer and a generator under supervision."""

    def __init__(self, launcher: FakeLauncher | None = None) -> None:
        self.clock = Clock()
        self.launcher = launcher or FakeLauncher()
        self.progress: dict[str, int] = {}
        self.supervisor = Supervisor(
            ["trainer", "generator-0"],
            self.launcher,
            LIMITS,
            progress=lambda: dict(self.progress),
            clock=self.clock,
            wait=self.clock.wait,
        )

    def tick(self, at: float | None = None) -> bool:
        self.clock.now = self.clock.now if at is None else at
        return self.supervisor.tick()

    def end(self, role: str, outcome: str, detail: str = "") -> None:
        self.launcher.now(role).told = Ending(outcome=outcome, detail=detail)  # type: ignore[arg-type]

    def lives(self, role: str) -> int:
        return len(self.launcher.lives[role])


def test_starts_every_child_in_one_tick() -> None:
    scene = Scene()
    assert not scene.tick()
    assert {role: len(lives) for role, lives in scene.launcher.lives.items()} == {"trainer": 1, "generator-0": 1}


def test_is_done_when_all_have_finished() -> None:
    scene = Scene()
    scene.tick()
    scene.end("trainer", "finished")
    assert not scene.tick()
    scene.end("generator-0", "finished")
    assert scene.tick()
    assert scene.supervisor.num_restarts == 0


def test_restarts_after_pauses_that_double() -> None:
    scene = Scene()
    scene.tick(at=0)
    scene.end("generator-0", "killed")
    scene.tick(at=3)  # due at 4
    scene.tick(at=3.9)
    assert scene.lives("generator-0") == 1
    scene.tick(at=4)
    assert scene.lives("generator-0") == 2
    scene.end("generator-0", "failed")
    scene.tick(at=5)  # due at 7
    scene.tick(at=6.9)
    assert scene.lives("generator-0") == 2
    scene.tick(at=7)
    assert scene.lives("generator-0") == 3
    assert scene.supervisor.num_restarts == 2


def test_gives_up_after_the_last_restart_and_says_everything() -> None:
    scene = Scene()
    for at in (0, 10, 20):
        scene.progress["trainer"] = at
        scene.tick(at=at)
        scene.end("generator-0", "failed", "WorkloadError: the pole broke")
        if at < 20:
            scene.tick(at=at + 1)
    with pytest.raises(
        ChildFailed, match=r"generator-0 gave up after 3 attempts.*the pole broke.*output/generator-0.log"
    ):
        scene.tick(at=21)


def test_a_refused_child_is_not_tried_again() -> None:
    scene = Scene()
    scene.tick()
    scene.end("generator-0", "refused", "UnsupportedSpace: Dict")
    with pytest.raises(ChildFailed, match=r"after 1 attempt; the last one refused: UnsupportedSpace"):
        scene.tick()


def test_a_child_that_stands_still_is_stopped_and_restarted() -> None:
    scene = Scene()
    scene.progress = {"trainer": 1, "generator-0": 1}
    scene.tick(at=0)
    scene.tick(at=1)
    scene.progress["trainer"] = 2
    scene.tick(at=11)
    assert not scene.launcher.now("generator-0").stopped  # exactly ten seconds are allowed
    scene.tick(at=11.5)
    assert scene.launcher.now("generator-0").stopped
    assert not scene.launcher.now("trainer").stopped
    scene.tick(at=12)
    scene.tick(at=13)
    assert scene.lives("generator-0") == 2


def test_a_stuck_child_that_does_not_heed_is_killed_after_the_grace() -> None:
    scene = Scene(FakeLauncher(lambda: FakeChild(heeds_stop=False)))
    scene.progress["generator-0"] = 1
    scene.tick(at=0)
    scene.tick(at=0.5)
    stuck = scene.launcher.now("generator-0")
    scene.tick(at=11)
    scene.tick(at=15.9)
    assert stuck.stopped
    assert not stuck.killed
    scene.tick(at=16.1)
    assert stuck.killed


def test_a_child_has_four_minutes_for_its_first_report() -> None:
    scene = Scene()
    scene.tick(at=100)
    scene.tick(at=340)
    assert not scene.launcher.now("trainer").stopped
    scene.tick(at=340.5)
    assert scene.launcher.now("trainer").stopped


def test_generators_get_a_grace_after_the_trainer_and_are_then_stopped() -> None:
    scene = Scene()
    scene.tick(at=0)
    scene.end("trainer", "finished")
    scene.progress["generator-0"] = 1
    scene.tick(at=1)
    scene.tick(at=6)
    assert not scene.launcher.now("generator-0").stopped
    assert not scene.tick(at=6.5)
    assert scene.launcher.now("generator-0").stopped
    assert scene.tick(at=7)


def test_a_generator_that_dies_after_training_is_not_restarted() -> None:
    scene = Scene()
    scene.tick(at=0)
    scene.end("trainer", "finished")
    scene.tick(at=1)
    scene.end("generator-0", "killed")
    assert scene.tick(at=2)
    assert scene.lives("generator-0") == 1


def test_a_trainer_that_dies_at_the_end_brings_finished_generators_back() -> None:
    scene = Scene()
    scene.tick(at=0)
    scene.end("generator-0", "finished")
    scene.tick(at=1)
    scene.end("trainer", "killed")
    scene.tick(at=2)
    scene.tick(at=3)
    assert (scene.lives("trainer"), scene.lives("generator-0")) == (2, 2)


def test_nothing_starts_and_nothing_is_counted_while_the_launcher_is_away() -> None:
    scene = Scene()
    scene.tick(at=0)
    scene.launcher.away = True
    scene.end("generator-0", "killed")
    for at in (1, 5, 9):
        scene.tick(at=at)
    assert scene.lives("generator-0") == 1
    scene.launcher.away = False
    scene.tick(at=9.5)
    assert scene.lives("generator-0") == 2


def test_stop_asks_all_at_once_and_kills_the_rest_after_the_grace() -> None:
    scene = Scene(FakeLauncher(lambda: FakeChild(heeds_stop=False)))
    scene.tick()
    scene.end("trainer", "finished")
    scene.supervisor.stop()
    assert scene.launcher.now("generator-0").stopped
    assert scene.launcher.now("generator-0").killed
    assert not scene.launcher.now("trainer").killed
    assert scene.clock.now == pytest.approx(LIMITS.stop_grace_s, abs=0.2)

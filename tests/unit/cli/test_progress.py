import time

from offbeat.cli import progress
from offbeat.cli.progress import View, Watcher, shown_progress
from offbeat.errors import LogUnavailable
from offbeat.runs import write_status


def test_a_watcher_sees_steps_and_who_waits(made):
    store = made.open_store()
    write_status(store, "trainer", {"phase": "working", "samples_per_second": 12345.0})
    write_status(store, "generator-0", {"phase": "waiting", "generator_busy_ratio": 0.5})
    write_status(store, "generator-1", {"phase": "working", "generator_busy_ratio": 0.75})
    write_status(store, "generator-2", {"phase": "stopped", "generator_busy_ratio": 0.0})
    watcher = Watcher(made)
    view = watcher.poll()
    watcher.close()
    assert view == View(
        step=2,
        max_steps=4,
        episode_return=21.5,
        samples_per_second=12345,
        staleness=2,
        age_s=0.25,
        generators=2,
        generators_busy=0.625,
    )
    assert view.text() == "return 21.5  12.3k samples/s  staleness 2  age 0.25 s  2 generators  busy 62% of their time"


def test_who_has_started_since_is_said_once_for_each_life(made):
    store = made.open_store()
    write_status(store, "trainer", {"pid": 1, "phase": "working", "updated_at_ns": 0})
    watcher = Watcher(made)
    assert watcher.poll().started == ()
    for pid in (2, 2, 3):
        said = {"pid": pid, "http": "http://127.0.0.1:9", "updated_at_ns": time.time_ns()}
        write_status(store, "trainer", said)
        started = watcher.poll().started
    write_status(store, "generator-0", {"pid": 4, "updated_at_ns": time.time_ns()})
    assert started == ("trainer started  http://127.0.0.1:9",) * 2
    assert watcher.poll().started == (*started, "generator-0 started")
    watcher.close()


def test_starts_are_said_at_once_and_steps_at_their_interval(capsys):
    lines = progress._Lines()
    for step in (0, 1, 2):
        lines.show(View(step=step, max_steps=9, started=("trainer started", "generator-0 started")[:step]), False)
    lines.show(View(step=3, max_steps=9, started=("trainer started", "generator-0 started")), True)
    assert capsys.readouterr().err.splitlines() == [
        "step 0/9  starting",
        "trainer started",
        "generator-0 started",
        "step 3/9  starting",
    ]


def test_a_log_that_is_away_leaves_the_last_numbers_standing(made, monkeypatch):
    watcher = Watcher(made)
    before = watcher.poll()

    def away(log, position):
        raise LogUnavailable("the disk is full")

    monkeypatch.setattr("offbeat.ledger.read_outcomes", away)
    assert watcher.poll() == before
    watcher.close()


def test_nothing_known_yet():
    assert View().text() == "starting"


def test_plain_lines_where_there_is_no_terminal(made, home, capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 60.0)
    with shown_progress("made", home):
        pass
    out, err = capsys.readouterr()
    assert (out, err) == ("", "step 2/4  return 21.5  staleness 2  age 0.25 s\n")


def test_a_run_that_never_began_shows_nothing(home, capsys):
    with shown_progress("never", home):
        pass
    assert capsys.readouterr().err == ""


def test_a_live_display_on_a_terminal(made, home, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    with shown_progress("made", home):
        pass
    err = capsys.readouterr().err
    assert "2/4" in err
    assert "return 21.5" in err

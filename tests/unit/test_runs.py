"""A run's identity, its frozen configuration, its folder and the locks in it."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from offbeat.config import RunConfig, parse_config
from offbeat.errors import ConfigError, NotReady, ResumeRefused, RunLocked, StoreUnavailable
from offbeat.runs import TAKEN_IDS, Run, default_home, new_run_id, read_status, write_status
from offbeat.store import open_store

NOBODY = 65534


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(parse_config({"name": "cart", "seed": 3}), run_id="one", home=tmp_path)


# Identity


def test_a_run_id_begins_with_the_name_and_is_never_the_same() -> None:
    first, second = new_run_id("cart"), new_run_id("cart")
    assert first.startswith("cart-")
    assert first != second


@pytest.mark.parametrize("run_id", ["a", "A-1_2.b", "9", "x" * 100])
def test_run_ids_that_are_fine(tmp_path: Path, run_id: str) -> None:
    assert Run.create(RunConfig(), run_id=run_id, home=tmp_path).folder == tmp_path / run_id


@pytest.mark.parametrize("run_id", ["..", ".hidden", "-x", "a/b", "../up", "a b", "a\n", "é", "x" * 101, *TAKEN_IDS])
def test_run_ids_that_are_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ConfigError, match="run id: got"):
        Run.create(RunConfig(), run_id=run_id, home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_home_is_offbeat_home_or_runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OFFBEAT_HOME", str(tmp_path / "elsewhere"))
    assert Run.create(RunConfig(), run_id="x").home == tmp_path / "elsewhere"
    monkeypatch.delenv("OFFBEAT_HOME")
    monkeypatch.chdir(tmp_path)
    assert default_home() == tmp_path / "runs"


# The frozen configuration


def test_a_run_opens_by_id_and_by_folder_with_its_configuration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_SIZE", "9")  # what was resolved at the start holds, whatever the shell says now
    assert Run.open("one", home=run.home) == run
    assert Run.open(run.folder) == run
    assert Run.open(f"{run.folder}/") == run


def test_a_run_that_is_not_there_names_those_that_are(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"no run 'two' in .*; newest there: one"):
        Run.open("two", home=run.home)


def test_a_run_is_created_once(run: Run) -> None:
    with pytest.raises(ConfigError, match="offbeat resume one"):
        Run.create(RunConfig(), run_id="one", home=run.home)
    assert Run.open("one", home=run.home).config.seed == 3


def test_what_may_change_is_frozen_anew(run: Run) -> None:
    longer = parse_config({"name": "cart", "seed": 3, "training": {"max_steps": 99_999}})
    changed = run.changed(longer)
    assert changed.config == longer
    assert Run.open(run.folder).config == longer


@pytest.mark.parametrize(
    ("data", "key", "old", "new"),
    [
        ({"seed": 4}, "seed", "3", "4"),
        ({"name": "other"}, "name", "'cart'", "'other'"),
        ({"workload": {"env_id": "Acrobot-v1"}}, "workload.env_id", "'CartPole-v1'", "'Acrobot-v1'"),
        ({"workload": {"policy": {"hidden_sizes": [8]}}}, "workload.policy.hidden_sizes", "[64, 64]", "[8]"),
        ({"workload": {"env_kwargs": {"g": 1}}}, "workload.env_kwargs.g", "None", "1"),
        ({"generator": {"num_generators": 3}}, "generator.num_generators", "2", "3"),
        ({"training": {"algorithm": {"discount": 0.5}}}, "training.algorithm.discount", "0.99", "0.5"),
        ({"training": {"max_staleness": 0}}, "training.max_staleness", "4", "0"),
        ({"training": {"torch_threads": 2}}, "training.torch_threads", "1", "2"),
    ],
)
def test_what_cannot_change_is_refused_with_old_and_new(
    run: Run, data: dict[str, Any], key: str, old: str, new: str
) -> None:
    with pytest.raises(ResumeRefused) as caught:
        run.changed(parse_config({"name": "cart", "seed": 3} | data))
    assert f"{key}: was {old}, now {new}" in str(caught.value)
    assert Run.open(run.folder) == run


def test_every_refused_change_is_named_and_no_allowed_one(run: Run) -> None:
    with pytest.raises(ResumeRefused) as caught:
        run.changed(parse_config({"name": "cart", "seed": 4, "training": {"max_steps": 5, "gradient_clip": 9}}))
    assert "seed" in str(caught.value)
    assert "training.gradient_clip" in str(caught.value)
    assert "max_steps" not in str(caught.value)


def test_max_steps_cannot_change_under_a_schedule_that_depends_on_it(tmp_path: Path) -> None:
    data = {"training": {"algorithm": {"lr_schedule": "linear"}, "max_steps": 10}}
    run = Run.create(parse_config(data), run_id="x", home=tmp_path)
    data["training"]["max_steps"] = 20
    with pytest.raises(ResumeRefused, match=r"training\.max_steps: was 10, now 20"):
        run.changed(parse_config(data))


# Locks


HOLD = """
import sys
from offbeat.runs import Run

with Run.open(sys.argv[1] + "/").hold("trainer"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(run: Run) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(run.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_role_is_held_by_one_process(run: Run, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(RunLocked, match=f"process {holder.pid} already works as trainer"), run.hold("trainer"):
        pass
    with run.hold("generator-0"):
        pass


def test_a_killed_process_holds_nothing(run: Run, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with run.hold("trainer"):
        assert (run.folder / "locks" / "trainer").read_text() == str(os.getpid())


def test_whoever_looks_sees_which_roles_are_held_and_is_in_nobodys_way(
    run: Run, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with run.hold("lifecycle"):
        assert run.roles_held() == {"trainer", "lifecycle"}
    assert run.roles_held() == {"trainer"}
    holder.kill()
    holder.wait()
    assert run.roles_held() == set()
    with (run.folder / "locks" / "trainer").open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        monkeypatch.setattr("offbeat.runs.time.sleep", lambda _: fcntl.flock(looked_at, fcntl.LOCK_UN))
        with run.hold("trainer"):
            pass


def test_a_record_is_opened_whatever_the_rest_of_the_configuration_says(run: Run) -> None:
    run.config_file.write_text("training: 3\nnonsense: 1\ngenerator: {num_generators: 3, nonsense: 1}\n")
    with pytest.raises(ConfigError, match="nonsense: unknown key"):
        Run.open(run.folder)
    assert Run.open_record(run.folder).config.generator.num_generators == 3
    run.config_file.write_text("generator: {num_generators: many}\n")
    with pytest.raises(ConfigError, match=r"run\.yaml: 1 fault\n  generator.num_generators: got 'many'"):
        Run.open_record(run.folder)


def test_a_role_is_free_again_after_an_error(run: Run) -> None:
    with pytest.raises(ZeroDivisionError), run.hold("trainer"):
        raise ZeroDivisionError
    with run.hold("trainer"):
        pass


# Folders that cannot be written


def test_a_home_below_a_file_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReady, match=r"cannot write the run folder .*: Not a directory"):
        Run.create(RunConfig(), run_id="x", home=tmp_path / "file")


@contextmanager
def as_somebody_else(folder: Path) -> Iterator[None]:
    """Root may write everywhere, so it becomes nobody for a while, with a way down to the folder."""
    closed = {path: path.stat().st_mode for path in folder.parents if path.stat().st_mode & 0o011 != 0o011}
    user = os.geteuid()
    if user == 0:
        for path, mode in closed.items():
            path.chmod(mode | 0o011)
        os.seteuid(NOBODY)
    yield
    if user == 0:
        os.seteuid(user)
        for path, mode in closed.items():
            path.chmod(mode)


@pytest.fixture
def read_only(run: Run) -> Iterator[Run]:
    folders = (run.home, run.folder, run.folder / "locks")
    for path in folders:
        path.chmod(0o555)
    with as_somebody_else(run.home):
        yield run
    for path in folders:
        path.chmod(0o755)


def test_a_read_only_home_is_not_ready(read_only: Run) -> None:
    with pytest.raises(NotReady, match=r"cannot write the run folder .*: Permission denied"):
        Run.create(RunConfig(), run_id="two", home=read_only.home)


def test_a_read_only_run_says_so_at_every_door(read_only: Run) -> None:
    with pytest.raises(NotReady, match="Permission denied"):
        read_only.changed(parse_config({"name": "cart", "seed": 3, "training": {"max_steps": 5}}))
    with pytest.raises(NotReady, match="Permission denied"):
        read_only.write_report({})
    with pytest.raises(NotReady, match="Permission denied"), read_only.hold("trainer"):
        pass
    assert Run.open(read_only.folder) == read_only


# Report and status


def test_a_report_is_read_back_and_absent_before(run: Run) -> None:
    assert run.read_report() is None
    run.write_report({"status": "done", "steps": 3})
    assert run.read_report() == {"status": "done", "steps": 3}
    assert not list(run.folder.glob(".*")), "a partial file was left"


def test_a_run_that_may_not_be_read_is_not_ready(run: Run) -> None:
    run.folder.chmod(0o700)
    with as_somebody_else(run.folder), pytest.raises(NotReady, match=r"cannot read run 'one' in .*: Permission denied"):
        Run.open(run.folder)


def test_the_last_word_of_each_process_is_kept(run: Run) -> None:
    store = run.open_store()
    assert read_status(store) == {}
    assert write_status(store, "trainer", {"progress": 1})
    assert write_status(store, "generator-0", {"progress": 5})
    assert write_status(store, "trainer", {"progress": 2})
    assert read_status(store) == {
        "trainer": {"role": "trainer", "progress": 2},
        "generator-0": {"role": "generator-0", "progress": 5},
    }


def test_a_status_that_the_store_does_not_take_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("local", root=tmp_path)

    def away(*_: object, **__: object) -> str:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "put", away)
    assert not write_status(store, "trainer", {"progress": 1})


def test_stores_of_two_runs_are_apart(run: Run) -> None:
    other = Run.create(RunConfig(), run_id="two", home=run.home)
    run.open_store().put("key", b"of one")
    assert other.open_store().head("key") is None
    assert json.loads(json.dumps(run.open_store().uri)).endswith("/store/one")


def test_the_store_may_be_elsewhere(tmp_path: Path) -> None:
    config = parse_config({"store": {"root": str(tmp_path / "away")}})
    run = Run.create(config, run_id="one", home=tmp_path / "home")
    run.open_store().put("key", b"value")
    assert (tmp_path / "away" / "one").is_dir()


def test_mlflow_stands_beside_the_runs_unless_told_otherwise(run: Run) -> None:
    assert run.tracking_uri == f"sqlite:///{run.home}/mlflow.db"
    elsewhere = Run(
        run_id="x", home=run.home, config=parse_config({"registry": {"tracking_uri": "http://mlflow:5000"}})
    )
    assert elsewhere.tracking_uri == "http://mlflow:5000"


def test_the_time_that_rewards_have_may_be_changed(tmp_path: Path) -> None:
    run = Run.create(parse_config({"workload": {"kind": "language"}}), run_id="l", home=tmp_path)
    longer = parse_config({"workload": {"kind": "language", "rewards": {"timeout_s": 90}}})
    assert run.changed(longer).config == longer
    with pytest.raises(ResumeRefused, match=r"workload\.rewards\.clip: was None, now 1"):
        run.changed(parse_config({"workload": {"kind": "language", "rewards": {"clip": 1}}}))

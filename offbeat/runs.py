"""A run's identity and folder: where its log, checkpoints and reports are, and who may work in it.

<home>/                       OFFBEAT_HOME, by default ./runs
  store/<run_id>/             the object store (local backend): checkpoints/, policy/, status/
  mlflow.db, mlartifacts/     MLflow's own, unless a tracking address is given
  <run_id>/
    run.yaml                  the resolved configuration, frozen at the start
    base/, baseline.json      what learning starts from, where that is made or fetched (language), and its score
    log/                      the trajectory log (sqlite backend)
    checkpoints/step-000001000/
    quality/  output/         Data Docs; what the children print
    locks/                    one file per role, held while its process lives
    report.json               the final account, the keys of `offbeat run --json`
"""

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from offbeat.config import RunConfig, config_changes, dump_config, load_config
from offbeat.errors import ConfigError, NotReady, ResumeRefused, RunLocked, StoreUnavailable
from offbeat.log import Log, open_log
from offbeat.store import Store, open_store

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# What stands beside the runs in their home.
TAKEN_IDS = ("store", "mlartifacts", "mlflow.db", "prefect", "rewards-check.log")

# What it takes to find what a run recorded; the rest of its configuration says how to go on.
RECORD_KEYS = ("name", "generator.num_generators", "log", "store")

# What a resumed run must keep: change it and the log no longer means the same trajectories or the same steps.
FROZEN_KEYS = (
    "name",
    "seed",
    "workload.",
    "log.kind",
    "generator.num_generators",
    "training.algorithm.",
    "training.torch_threads",
    "training.device",
    "training.max_staleness",
    "training.gradient_clip",
    "training.reward_fn",
    "strategy.num_workers",
    "strategy.sharding",
)


# Of the frozen sections, what decides no reward that is given and no step that is planned.
FREE_KEYS = ("workload.rewards.timeout_s", "workload.rewards.max_waiting")


def default_home() -> Path:
    """Folder that holds all runs: OFFBEAT_HOME, or ./runs."""
    return Path(os.environ.get("OFFBEAT_HOME", "runs")).absolute()


def new_run_id(name: str) -> str:
    """A fresh run id: the configuration's name, the UTC time, and a few random letters."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def check_new_id(run_id: str, home: Path) -> None:
    """Raise ConfigError unless a new run in `home` may have this id."""
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(f"run id: got {run_id!r}, expected up to 100 letters, digits, '.', '_' and '-'")
    if run_id in TAKEN_IDS:
        raise ConfigError(f"run id: got {run_id!r}, expected none of {', '.join(TAKEN_IDS)}")
    if (home / run_id / "run.yaml").exists():
        raise ConfigError(f"run {run_id} exists already in {home}; continue it with `offbeat resume {run_id}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its id, its resolved configuration and its home folder."""

    run_id: str
    config: RunConfig
    home: Path

    @classmethod
    def create(cls, config: RunConfig, *, run_id: str | None = None, home: Path | None = None) -> "Run":
        """Make the run's folder and freeze its configuration; raises NotReady when the folder cannot be written."""
        run = cls(
            run_id=new_run_id(config.name) if run_id is None else run_id,
            config=config,
            home=(home or default_home()).absolute(),
        )
        check_new_id(run.run_id, run.home)
        try:
            for folder in (run.folder, run.checkpoints, run.folder / "locks", run.folder / "output"):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotReady(f"cannot write the run folder {run.folder}: {error.strerror}") from error
        _write_whole(run.config_file, dump_config(config))
        return run

    @classmethod
    def open(cls, run: str | Path, *, home: Path | None = None) -> "Run":
        """Open a run by its id (under `home`) or its folder; raises ConfigError (none there), NotReady."""
        folder = _find(run, home)
        config = load_config(folder / "run.yaml", environ={})
        return cls(run_id=folder.name, config=config, home=folder.parent.absolute())

    @classmethod
    def open_record(cls, run: str | Path, *, home: Path | None = None) -> "Run":
        """Open a run to read what it recorded and for nothing else: most of its configuration may be wrong.

        Only RECORD_KEYS are read, every other key has its default. Raises as `open` does.
        """
        folder = _find(run, home)
        config = load_config(folder / "run.yaml", environ={}, only=RECORD_KEYS)
        return cls(run_id=folder.name, config=config, home=folder.parent.absolute())

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.home / self.run_id

    @property
    def config_file(self) -> Path:
        """The frozen configuration."""
        return self.folder / "run.yaml"

    @property
    def base(self) -> Path:
        """Folder of what learning starts from; only some kinds of work have one."""
        return self.folder / "base"

    @property
    def checkpoints(self) -> Path:
        """Local checkpoints, `step-000001000/` each."""
        return self.folder / "checkpoints"

    @property
    def tracking_uri(self) -> str:
        """MLflow's address: the configured one, or a SQLite database beside the runs."""
        return self.config.registry.tracking_uri or f"sqlite:///{self.home / 'mlflow.db'}"

    def open_log(self) -> Log:
        """The run's log, through the one factory."""
        log = self.config.log
        return open_log(
            log.kind,
            folder=self.folder / "log",
            num_partitions=self.config.generator.num_generators,
            max_record_bytes=log.max_record_bytes,
        )

    def open_store(self) -> Store:
        """The run's own corner of the store (every key is relative to it)."""
        root = Path(self.config.store.root).absolute() if self.config.store.root else self.home / "store"
        return open_store(self.config.store.kind, root=root / self.run_id)

    def changed(self, config: RunConfig) -> "Run":
        """This run under a changed configuration, frozen anew; raises ResumeRefused naming what cannot change."""
        changes = config_changes(self.config, config)
        frozen: tuple[str, ...] = FROZEN_KEYS
        if self.config.training.algorithm.lr_schedule != "constant":
            frozen += ("training.max_steps",)  # the schedule's length decides the step size of steps already trained
        refused = {key: change for key, change in changes.items() if key.startswith(frozen) and key not in FREE_KEYS}
        if refused:
            lines = [f"  {key}: was {old!r}, now {new!r}" for key, (old, new) in refused.items()]
            raise ResumeRefused("\n".join([f"run {self.run_id} cannot be resumed with these changes:", *lines]))
        _write_whole(self.config_file, dump_config(config))
        return Run(run_id=self.run_id, config=config, home=self.home)

    @contextmanager
    def hold(self, role: str) -> Iterator[None]:
        """Hold a role ('lifecycle', 'trainer', 'generator-0') while the block runs.

        Raises RunLocked when another process does, NotReady when the folder cannot be written.
        """
        with _open_lock(self.folder / "locks" / role) as file:
            if not _locked(file):
                file.seek(0)
                holder = file.read().strip() or "?"
                raise RunLocked(f"run {self.run_id}: process {holder} already works as {role}")
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def roles_held(self) -> set[str]:
        """The roles that a living process holds now; whoever was killed holds none."""
        return {path.name for path in (self.folder / "locks").glob("*") if _is_held(path)}

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Keep the run's final account."""
        _write_whole(self.folder / "report.json", json.dumps(report, indent=2))

    def read_report(self) -> dict[str, Any] | None:
        """The final account, None before there is one."""
        path = self.folder / "report.json"
        return dict(json.loads(path.read_text())) if path.is_file() else None


def _find(run: str | Path, home: Path | None) -> Path:
    text = str(run)
    folder = Path(text) if os.sep in text else (home or default_home()) / text
    try:
        found = (folder / "run.yaml").is_file()
        known = sorted(path.parent.name for path in folder.parent.glob("*/run.yaml"))[-5:]
    except OSError as error:
        raise NotReady(f"cannot read run {folder.name!r} in {folder.parent}: {error.strerror}") from error
    if not found:
        raise ConfigError(f"no run {folder.name!r} in {folder.parent}; newest there: {', '.join(known) or 'none'}")
    return folder


def write_status(store: Store, role: str, status: Mapping[str, Any]) -> bool:
    """Publish what a process says of itself under `status/<role>.json`; False when the store is away.

    Keys: role, pid, host, http (URL), phase ('starting', 'working', 'waiting', 'stopped'), progress (int that grows
    while the process does its work or rightly waits), updated_at_ns, and the role's own numbers.
    """
    try:
        store.put(f"status/{role}.json", json.dumps({"role": role, **status}).encode())
    except StoreUnavailable:
        return False
    return True


def read_status(store: Store) -> dict[str, dict[str, Any]]:
    """The last word of every process of the run, by role."""
    found = {}
    for info in store.list("status/"):
        status = json.loads(store.get(info.key))
        found[status["role"]] = status
    return found


def _open_lock(path: Path) -> TextIO:
    try:
        path.parent.mkdir(exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise NotReady(f"cannot write {path}: {error.strerror}") from error


def _locked(file: TextIO) -> bool:
    # Whoever only looks (`roles_held`) is gone after an instant; whoever works stays.
    for pause_s in (0.02, 0.1, None):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if pause_s:
            time.sleep(pause_s)
    return False


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise NotReady(f"cannot read {path}: {error.strerror}") from error
    return False


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise NotReady(f"cannot write {path}: {error.strerror}") from error

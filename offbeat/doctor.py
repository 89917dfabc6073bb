"""Whether this machine can carry a run: one function for each thing that a run needs.

Every `check_...` returns what it found, in a few words, or raises an OffbeatError that says what to do about it.
Nothing stays behind: what is written for a check is deleted again.
"""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from offbeat.config import RunConfig
from offbeat.errors import ConfigError, LogError, NotReady, OffbeatError, StoreError
from offbeat.runs import Run

PYTHON_VERSIONS = ((3, 11), (3, 14))
FREE_BYTES = 1 << 30
PROBE = b"offbeat doctor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found, or why it failed."""

    name: str
    ok: bool
    detail: str


def examine(name: str, check: Callable[[], str]) -> Finding:
    """Run one check; its error becomes a finding."""
    try:
        return Finding(name=name, ok=True, detail=check())
    except OffbeatError as error:
        return Finding(name=name, ok=False, detail=str(error))


def machine_checks(home: Path) -> dict[str, Callable[[], str]]:
    """What every run needs, by name."""
    return {
        "python": check_python,
        "packages": check_packages,
        "home": lambda: check_home(home),
        "disk": lambda: check_disk(home),
        "git": check_git,
    }


def run_checks(config: RunConfig, home: Path) -> dict[str, Callable[[], str]]:
    """What this configuration needs as well, by name."""
    return {
        "device": lambda: check_device(config),
        "workload": lambda: check_workload(config, home),
        "log": lambda: check_log(config, home),
        "store": lambda: check_store(config, home),
        "ports": lambda: check_ports(config),
        "mlflow": lambda: check_mlflow(config, home),
    }


def check_python() -> str:
    """The interpreter is one that Offbeat is made for."""
    low, high = PYTHON_VERSIONS
    found = ".".join(map(str, sys.version_info[:3]))
    if not low <= sys.version_info[:2] < high:
        raise NotReady(
            f"got Python {found}, expected 3.11 to 3.13; make the virtual environment anew with one of these"
        )
    return found


def check_packages() -> str:
    """Every package that Offbeat requires is installed in a version that it takes."""
    from packaging.requirements import Requirement

    faults, count = [], 0
    for requirement in map(Requirement, metadata.requires("offbeat") or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            faults.append(f"{requirement} is not installed")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            faults.append(f"{requirement.name}: got {found}, expected {requirement.specifier}")
    if faults:
        raise NotReady(f"{'; '.join(faults)}; run `make install`")
    named = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "prefect", "mlflow", "gymnasium"))
    return f"{count} present ({named})"


def check_home(home: Path) -> str:
    """The folder of the runs can be made and written."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home, prefix=".doctor-") as probe:
            probe.write(PROBE)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise NotReady(f"cannot write the runs folder {home}: {error.strerror}; choose another with --home") from error
    return str(home)


def check_disk(home: Path) -> str:
    """There is room for a run beside the ones that are there."""
    try:
        free = shutil.disk_usage(_existing(home)).free
    except OSError as error:
        raise NotReady(f"cannot ask for the free space at {home}: {error.strerror}") from error
    if free < FREE_BYTES:
        raise NotReady(f"{home}: got {free >> 20} MiB free, expected at least {FREE_BYTES >> 20} MiB; delete old runs")
    return f"{free / (1 << 30):.1f} GiB free"


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_git() -> str:
    """The git revision that the lineage names can be read, where there is a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except FileNotFoundError:
        return "git is not installed; a model's lineage will name no revision"
    except subprocess.TimeoutExpired as error:
        raise NotReady("git does not answer within 10 s; is the repository on a hanging file system?") from error
    if done.returncode == 0:
        return f"revision {done.stdout.strip()}"
    if "not a git repository" in done.stderr or "Needed a single revision" in done.stderr:
        return "no repository here; a model's lineage will name no revision"
    raise NotReady(f"git cannot read the revision: {done.stderr.strip()}")


def check_device(config: RunConfig) -> str:
    """The learner's device can hold a number."""
    import torch

    device = config.training.device
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"training.device: got {device!r}, which torch cannot use here ({reason}); try cpu"
        ) from error
    return device


def check_workload(config: RunConfig, home: Path) -> str:
    """What is learned can be had: an environment that steps, or a model's data and rewards."""
    from offbeat.workloads import open_workload

    with tempfile.TemporaryDirectory(dir=home, prefix=".doctor-") as folder:
        try:
            return open_workload(config, base=Path(folder) / "base").check()
        except ConfigError as error:
            raise ConfigError(_with_kept_output(str(error), Path(folder) / "output", home)) from error


def _with_kept_output(message: str, output: Path, home: Path) -> str:
    """Move what rewards printed out of the folder that goes, where the message sends its reader."""
    for file in output.glob("*.log"):
        file.replace(home / file.name)
        message = message.replace(str(file), str(home / file.name))
    return message


@contextmanager
def _probe_run(config: RunConfig, home: Path) -> Iterator[Run]:
    """A run of its own in a folder that is deleted afterwards, with what it left in the store."""
    check_home(home)
    with tempfile.TemporaryDirectory(dir=home, prefix=".doctor-") as folder:
        run = Run.create(config, run_id=Path(folder).name.lstrip("."), home=Path(folder))
        try:
            yield run
        finally:
            if config.store.root:
                shutil.rmtree(Path(config.store.root) / run.run_id, ignore_errors=True)


def check_log(config: RunConfig, home: Path) -> str:
    """What is appended to the log can be read again."""
    from offbeat.log import Entry

    with _probe_run(config, home) as run, closing(run.open_log()) as log:
        log.append("quarantine", 0, [Entry(headers={"probe": "1"}, payload=PROBE)])
        found = log.read("quarantine", 0, log.begin("quarantine", 0))
        if [record.payload for record in found] != [PROBE]:
            raise LogError(f"the {config.log.kind} log gave back {len(found)} records that are not the one written")
    return f"{config.log.kind}, {config.generator.num_generators} partitions, written and read"


def check_store(config: RunConfig, home: Path) -> str:
    """What is put into the store can be read again."""
    with _probe_run(config, home) as run, closing(run.open_store()) as store:
        store.put("doctor/probe", PROBE)
        if store.get("doctor/probe") != PROBE:
            raise StoreError(f"{store.uri_of('doctor/probe')} gave back other bytes than were written")
        store.delete("doctor/probe")
    return f"{config.store.kind}, written and read"


def check_ports(config: RunConfig) -> str:
    """The ports that the configuration fixes are free; 0 takes a free one and needs no check."""
    seen = config.observation
    wanted = {"trainer_port": seen.trainer_port, "service_port": seen.service_port}
    if seen.generator_port:
        count = config.generator.num_generators
        wanted |= {f"generator_port + {index}": seen.generator_port + index for index in range(count)}
    fixed = {name: port for name, port in wanted.items() if port}
    if len(set(fixed.values())) < len(fixed):
        raise ConfigError(f"ports: got {fixed}, expected each to be another; change them under observation")
    for name, port in fixed.items():
        _check_port(name, seen.host, port)
    return (
        f"{', '.join(map(str, fixed.values()))} free" if fixed else "none is fixed; free ones are chosen at the start"
    )


def _check_port(name: str, host: str, port: int) -> None:
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, OverflowError) as error:
        raise NotReady(
            f"observation.{name}: cannot open {host}:{port} ({error}); choose another, or 0 for a free one"
        ) from error


def check_mlflow(config: RunConfig, home: Path) -> str:
    """MLflow's database can be written, or its server answers."""
    from offbeat.registry import Registry, masked

    uri = Run(run_id="doctor", config=config, home=home).tracking_uri
    if not uri.startswith("sqlite:///"):
        Registry(uri, experiment=config.registry.experiment).versions(config.model_name)
        return f"{masked(uri)} answers"
    file = Path(uri.removeprefix("sqlite:///"))
    check_home(file.parent)
    if not file.exists():
        return f"{file}, made by the first run"
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=rw", uri=True, timeout=5)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        raise NotReady(
            f"MLflow's database {file} cannot be used: {error}; move it away, or set registry.tracking_uri"
        ) from error
    return str(file)

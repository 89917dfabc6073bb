"""A Prefect API for one command: the configured one, or a real server of our own that lives no longer than we do.

prefect_api(home) ──> PREFECT_API_URL set?  ── yes ──> ask its health, use it
                                            └─ no ───> `prefect server start` on a free port of 127.0.0.1,
                                                       database and log under <home>/prefect
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx

from offbeat.errors import ConfigError, NotReady

HEALTHY_WITHIN_S = 180.0
ANSWERS_WITHIN_S = 5.0
STOP_GRACE_S = 3.0
LOGS_WITHIN_S = 5.0

# The server's standard input is a pipe that ends with this process, even after kill -9. A shell in the background
# waits for that end and then takes the whole process group down, itself included; the other becomes the server.
_GUARD = 'exec 3<&0; (cat <&3 >/dev/null; kill -TERM 0; sleep 3; kill -KILL 0) & exec 3<&-; exec "$@" </dev/null'

# A server for one run schedules nothing and has no workers to watch over.
_NEEDLESS_FOR_A_RUN = ("SCHEDULER", "LATE_RUNS", "PAUSE_EXPIRATIONS", "FOREMAN", "REPOSSESSOR", "TRIGGERS")


@contextmanager
def prefect_api(
    home: Path, *, full: bool = False, port: int = 0, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """Yield the address of a Prefect API that answers, as PREFECT_API_URL of this process and its children.

    full: the server also schedules and watches workers, as `offbeat serve` needs. port: 0 takes a free one.
    meanwhile: work (slow imports) to do while a server starts. Raises ConfigError when PREFECT_API_URL is no
    address, NotReady when it does not answer or no server comes up.
    """
    given = os.environ.get("PREFECT_API_URL")
    if given:
        check_api(given)
        yield given
        return
    folder = home.absolute() / "prefect"
    chosen = port or free_port()
    url = f"http://127.0.0.1:{chosen}/api"
    with _in_environment(url, folder), _server(folder, chosen, full=full, meanwhile=meanwhile), _as_setting(url):
        yield url


def check_given_api() -> None:
    """Check the address that PREFECT_API_URL names, where it names one; raises as `check_api` does."""
    given = os.environ.get("PREFECT_API_URL")
    if given:
        check_api(given)


def check_api(url: str) -> None:
    """Ask the API for its health; raises ConfigError for what is no address, NotReady when it does not answer well."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"PREFECT_API_URL: got {url!r}, expected an address like http://127.0.0.1:4200/api")
    try:
        status = httpx.get(f"{url.rstrip('/')}/health", timeout=ANSWERS_WITHIN_S).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotReady(
            f"PREFECT_API_URL {url} does not answer ({error}); start that server or unset the variable"
        ) from error
    if status != httpx.codes.OK:
        raise NotReady(
            f"PREFECT_API_URL {url}: its /health answers {status}, expected 200; does the address end in /api?"
        )


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def guarded_process(command: list[str], *, log: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group that ends with this block, and with this process however that ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


@contextmanager
def _server(
    folder: Path, port: int, *, full: bool = False, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "starting.lock").open("w")
    except OSError as error:
        raise NotReady(f"cannot write the Prefect server's folder {folder}: {error.strerror}") from error
    command = _server_command(port)
    with contextlib.ExitStack() as stack:
        # Two servers that create one database at the same moment would fail each other.
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _start_from_template(folder / "prefect.db")
            log = folder / "server.log"
            process = stack.enter_context(guarded_process(command, log=log, env=_server_environment(folder, full=full)))
            meanwhile()
            _wait_until_healthy(process, port, log)
        yield


def _server_command(port: int) -> list[str]:
    return [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]


def _server_environment(folder: Path, *, full: bool) -> dict[str, str]:
    needless = () if full else _NEEDLESS_FOR_A_RUN
    return {
        **os.environ,
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_API_BLOCKS_REGISTER_ON_START": str(full).lower(),
        "DO_NOT_TRACK": "true",
        **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in needless},
    }


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + HEALTHY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=5.0).status_code == httpx.codes.OK:
                return
        time.sleep(0.1)
    got = "did not answer" if process.returncode is None else f"ended with code {process.returncode}"
    raise NotReady(f"the Prefect server {got} within {HEALTHY_WITHIN_S:.0f} s; what it printed is in {log}")


@contextmanager
def _in_environment(url: str, folder: Path) -> Iterator[None]:
    names = {"PREFECT_API_URL": url, "PREFECT_HOME": os.environ.get("PREFECT_HOME", str(folder))}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _as_setting(url: str) -> Iterator[None]:
    # Prefect reads the environment once, at its import, which may have been before.
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: url}):
        try:
            yield
        finally:  # What was logged last is still on its way to the server, which ends next.
            APILogWorker.drain_all(timeout=LOGS_WITHIN_S)


def template_path() -> Path:
    """Where this installation keeps an empty Prefect database of the installed version."""
    return Path(sys.prefix) / "share" / "offbeat" / f"prefect-{version('prefect')}.db"


def prepare_template() -> Path:
    """Make the empty database that new servers start from; creating the tables takes Prefect more than ten seconds."""
    template = template_path()
    if template.is_file():
        return template
    folder = template.with_suffix(f".{os.getpid()}")
    try:
        folder.mkdir(parents=True)
        with _server(folder, free_port()):
            pass
        with contextlib.closing(sqlite3.connect(folder / "prefect.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (folder / "prefect.db").replace(template)
    except (OSError, sqlite3.Error) as error:
        raise NotReady(f"cannot prepare {template}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return template


def _start_from_template(database: Path) -> None:
    template = template_path()
    if template.is_file() and not database.exists():
        partial = database.with_name(f".{database.name}.{os.getpid()}")
        shutil.copyfile(template, partial)
        partial.replace(database)

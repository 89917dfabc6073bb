"""A Prefect server of our own: it answers, and it never outlives whoever started it."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from conftest import until

from offbeat.cli import main
from offbeat.cli.prefect_server import free_port, prefect_api
from offbeat.errors import ConfigError, NotReady

pytestmark = pytest.mark.timeout(600)

OWNER = """
import sys, time
from pathlib import Path
from offbeat.cli.prefect_server import prefect_api
with prefect_api(Path(sys.argv[1]), port=int(sys.argv[2])):
    print("ready", flush=True)
    time.sleep(600)
"""


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_server_comes_and_goes_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_API_URL

    done = []
    with prefect_api(tmp_path, meanwhile=lambda: done.append("imports")) as url:
        port = int(url.split(":")[2].removesuffix("/api"))
        assert answers(port)
        assert (os.environ["PREFECT_API_URL"], PREFECT_API_URL.value()) == (url, url)
        now = datetime.now(UTC).isoformat()
        APILogWorker.instance().send({"name": "test", "level": 40, "message": "last words", "timestamp": now})
    assert done == ["imports"]
    assert not answers(port)
    assert "PREFECT_API_URL" not in os.environ
    with contextlib.closing(sqlite3.connect(tmp_path / "prefect" / "prefect.db")) as database:
        assert database.execute("SELECT message FROM log").fetchall() == [("last words",)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_when_its_owner_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    command = [sys.executable, "-c", OWNER, str(tmp_path), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert answers(port)
        os.kill(owner.pid, number)
        owner.wait()
    until(lambda: not answers(port), "the server to end", deadline_s=60)


def test_a_server_starts_from_the_prepared_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = tmp_path / "share" / "empty.db"
    monkeypatch.setattr("offbeat.cli.prefect_server.template_path", lambda: template)
    done = CliRunner().invoke(main, ["prepare"])
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (0, "", 1)
    assert list(template.parent.iterdir()) == [template]
    tables = tables_of(template)
    assert "flow_run" in tables
    with prefect_api(tmp_path / "home") as url:
        assert httpx.get(f"{url}/health", timeout=10).status_code == 200
    assert tables_of(tmp_path / "home" / "prefect" / "prefect.db") == tables


def tables_of(database: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_given_address_is_checked_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "localhost")
    with pytest.raises(ConfigError, match="expected an address like"), prefect_api(tmp_path):
        pass
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    with pytest.raises(NotReady, match="does not answer"), prefect_api(tmp_path):
        pass


def test_a_given_server_is_used_and_left_alone(tmp_path: Path, prefect_url: str) -> None:
    with prefect_api(tmp_path) as url:
        assert url == prefect_url
    assert not (tmp_path / "prefect").exists()
    assert httpx.get(f"{prefect_url}/health", timeout=10).status_code == 200


def test_a_server_that_cannot_start_says_where_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.cli.prefect_server._server_command", lambda port: ["/bin/false"])
    with pytest.raises(NotReady, match=r"ended with code 1.*server\.log"), prefect_api(tmp_path):
        pass

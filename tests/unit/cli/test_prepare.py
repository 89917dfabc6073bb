import pytest

from offbeat.cli import prefect_server
from offbeat.errors import NotReady


@pytest.fixture
def template(tmp_path, monkeypatch):
    path = tmp_path / "share" / "prefect.db"
    monkeypatch.setattr(prefect_server, "template_path", lambda: path)
    return path


@pytest.fixture
def servers(monkeypatch):
    """Stands where the server is started: makes its database, as the real one does."""
    started = []

    class Server:
        def __init__(self, folder, port):
            self.folder = folder

        def __enter__(self):
            started.append(self.folder)
            (self.folder / "prefect.db").touch()

        def __exit__(self, *ending):
            pass

    monkeypatch.setattr(prefect_server, "_server", Server)
    return started


def test_the_template_is_made_once_and_nothing_else_is_left(invoke, template, servers):
    first, second = invoke("prepare"), invoke("prepare")
    assert (first.exit_code, len(first.stderr.splitlines())) == (0, 1)
    assert (second.exit_code, second.output) == (0, "")
    assert len(servers) == 1
    assert list(template.parent.iterdir()) == [template]


def test_a_template_that_cannot_be_made_is_said_in_one_line_and_no_failure(invoke, template, monkeypatch):
    def refuses(folder, port):
        raise NotReady("the Prefect server ended with code 1")

    monkeypatch.setattr(prefect_server, "_server", refuses)
    result = invoke("prepare")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "takes some ten seconds longer: the Prefect server ended with code 1" in result.stderr.splitlines()[-1]
    assert list(template.parent.iterdir()) == []


def test_a_place_that_cannot_be_written_is_no_failure(invoke, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(prefect_server, "template_path", lambda: tmp_path / "file" / "prefect.db")
    result = invoke("prepare")
    assert result.exit_code == 0
    assert "cannot prepare" in result.stderr

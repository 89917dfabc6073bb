import pytest

from offbeat.errors import RegistryError
from offbeat.registry import ModelVersion


class FakeRegistry:
    """Three versions of one model, the second of which is champion."""

    opened = ()

    def __init__(self, tracking_uri, *, experiment):
        FakeRegistry.opened = (*FakeRegistry.opened, tracking_uri)
        self._versions = [self._version(number) for number in (1, 2, 3)]

    @staticmethod
    def _version(number):
        tags = {"run_id": f"run-{number}", "step": str(number * 100), "checkpoint_digest": "abc"}
        return ModelVersion(name="pole", version=number, uri=f"models:/pole/{number}", tags=tags)

    def versions(self, name):
        return self._versions if name == "pole" else []

    def champion(self, name):
        return self._versions[1] if name == "pole" else None

    def rollback(self, name):
        if name != "pole":
            raise RegistryError(f"model {name!r} has no champion to roll back to")
        return self._versions[0]


@pytest.fixture
def registry(monkeypatch, home):
    monkeypatch.setattr("offbeat.registry.Registry", FakeRegistry)
    monkeypatch.setattr(FakeRegistry, "opened", ())
    home.mkdir()
    (home / "mlflow.db").touch()


def test_models_lists_versions_with_their_origin(invoke, registry, home):
    rows = [line.split() for line in invoke("models", "pole", "--home", home).stdout.splitlines()]
    assert rows == [
        ["VERSION", "ALIAS", "RUN_ID", "STEP", "CHECKPOINT_DIGEST"],
        ["1", "run-1", "100", "abc"],
        ["2", "champion", "run-2", "200", "abc"],
        ["3", "run-3", "300", "abc"],
    ]


def test_an_unknown_model_exits_with_2(invoke, registry, home):
    assert invoke("models", "cart", "--home", home).exit_code == 2


def test_rollback_says_who_is_champion_now(invoke, registry, home):
    result = invoke("rollback", "pole", "--home", home)
    assert result.stdout == "pole: version 1 is champion again (models:/pole/1)\n"
    assert FakeRegistry.opened == (f"sqlite:///{home / 'mlflow.db'}",)


def test_nothing_to_roll_back_to_exits_with_1(invoke, registry, home):
    assert invoke("rollback", "cart", "--home", home).exit_code == 1


def test_an_address_is_used_as_given(invoke, registry, home):
    invoke("rollback", "pole", "--tracking-uri", "http://mlflow:5000", "--home", home)
    assert FakeRegistry.opened == ("http://mlflow:5000",)


def test_a_home_without_a_database_is_refused_and_nothing_is_made(invoke, home):
    result = invoke("rollback", "pole", "--home", home)
    assert result.exit_code == 2
    assert not home.exists()

"""What the tree promises to its reader: rooms with a floor, short modules, one door to each library, true links."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path for room in ("offbeat", "flows", "tasks") for path in (ROOT / room).rglob("*.py"))
DOCUMENTS = sorted(path for room in (".", "docs", "deployments", "benchmarks") for path in (ROOT / room).glob("*.md"))
HARD_CAP_LINES = 350
ONE_DOOR = {
    "mlflow": "offbeat/registry/client.py",
    "great_expectations": "offbeat/quality.py",
    "pyarrow.flight": "offbeat/service/flight.py",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    """Every module that is imported anywhere in the file; `from a import b` counts as a.b too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def plain(requirement: str) -> str:
    """The distribution's name, without extras and versions, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement.strip(), maxsplit=1)[0]).lower()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_one_idea_that_its_docstring_says(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), "no docstring"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= HARD_CAP_LINES
    assert not {"utils", "helpers", "common", "misc"} & {*path.relative_to(ROOT).parts, path.stem}


@pytest.mark.parametrize(("library", "door"), ONE_DOOR.items())
def test_a_library_has_one_door(library: str, door: str) -> None:
    inside = f"{library}."
    users = {name_of(path) for path in MODULES if any(f"{name}.".startswith(inside) for name in imports_of(path))}
    assert users == {door}


def test_every_room_has_a_floor() -> None:
    contracts = project()["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "floors")
    floors = {room.strip(" ()") for layer in layers for room in layer.split("|")}
    there = (path for path in (ROOT / "offbeat").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())
    rooms = {f"offbeat.{path.stem}" for path in there if not path.stem.startswith("__")}
    assert rooms - floors == set()


def test_unit_tests_mirror_the_rooms() -> None:
    ours = {"test_layout.py", "test_public_names.py"}
    for path in (ROOT / "tests" / "unit").iterdir():
        if path.name in ours or not (path.is_dir() or path.suffix == ".py") or path.name.startswith("_"):
            continue
        room = path.stem.removeprefix("test_")
        homes = [ROOT / parent / room for parent in ("offbeat", "", "offbeat/workloads")]
        assert any(home.is_dir() or home.with_suffix(".py").is_file() for home in homes), f"{path.name} tests no room"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_of_the_documents_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    missing = [target for target in targets if target and not (path.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_documents_name_only_make_targets_that_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", path.read_text(encoding="utf-8")))
    assert named - targets == set()


def test_constraints_are_exact_and_name_no_machine() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in pins)


def test_every_dependency_is_pinned() -> None:
    wanted = project()["project"]
    requirements = [
        *wanted["dependencies"],
        *(name for extra in wanted["optional-dependencies"].values() for name in extra),
    ]
    pins = {plain(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert {plain(requirement) for requirement in requirements} - pins == set()

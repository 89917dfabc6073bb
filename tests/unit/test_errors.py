"""The tree of errors is the one that its docstring draws, and each ends the command line as the drawing says."""

import inspect
import re

import pytest

from offbeat import errors
from offbeat.errors import ConfigError, NotReady, OffbeatError

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__]


def drawn_tree() -> dict[str, str]:
    """Parent of every class in the docstring's drawing, in which a level is four characters wide."""
    lines = (errors.__doc__ or "").splitlines()
    root = next(at for at, line in enumerate(lines) if line.strip() == "OffbeatError")
    indent = lines[root].index("OffbeatError")
    parents: dict[str, str] = {}
    path = ["OffbeatError"]
    for line in lines[root + 1 :]:
        branch = re.match(r"[ │├└─]*── (\w+)", line)
        if branch is None:
            break
        depth = (branch.start(1) - indent) // 4
        path = [*path[:depth], branch[1]]
        parents[branch[1]] = path[depth - 1]
    return parents


def test_the_drawing_is_the_tree() -> None:
    assert drawn_tree() == {cls.__name__: cls.__bases__[0].__name__ for cls in CLASSES if cls is not OffbeatError}


def test_every_error_is_one_of_ours() -> None:
    assert all(issubclass(cls, OffbeatError) for cls in CLASSES)
    assert all(len(cls.__bases__) == 1 for cls in CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_exit_codes(cls: type[OffbeatError]) -> None:
    assert cls.exit_code == (2 if issubclass(cls, ConfigError | NotReady) else 1)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_says_when_it_is_raised(cls: type[OffbeatError]) -> None:
    assert (cls.__doc__ or "").strip().endswith(".")

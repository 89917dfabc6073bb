"""`offbeat bench`: the scripts of benchmarks/, each with a `main(argv)`."""

import ast
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import offbeat
from offbeat.errors import ConfigError, NotReady

SOURCES = Path(offbeat.__file__).parents[1]
FOLDER = SOURCES / "benchmarks"


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--list", "only_list", is_flag=True, help="List the benchmarks and run none.")
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(*, only_list: bool, name: str | None, arguments: Sequence[str]) -> None:
    """Run a benchmark, or all of them.

    ARGUMENTS go to benchmark NAME; without a name every benchmark runs.
    """
    scripts = _scripts()
    if only_list:
        for found, script in scripts.items():
            click.echo(f"{found:<16}{_summary(script)}")
        return
    if name is not None and name not in scripts:
        raise ConfigError(f"benchmark: got {name!r}, expected one of {', '.join(scripts)}")
    for script in [scripts[name]] if name else scripts.values():
        code = _load(script).main(list(arguments))
        if code:
            click.get_current_context().exit(code)


def _scripts() -> dict[str, Path]:
    scripts = {path.stem: path for path in sorted(FOLDER.glob("[a-z]*.py")) if _has_main(path)}
    if not scripts:
        raise NotReady(f"no benchmarks in {FOLDER}; they come with the source tree, not with the installed package")
    return scripts


def _has_main(script: Path) -> bool:
    return any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in ast.parse(script.read_text()).body)


def _summary(script: Path) -> str:
    return (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n")[0]


def _load(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmarks.{script.stem}", script)
    if spec is None or spec.loader is None:
        raise NotReady(f"{script} cannot be loaded as Python")
    if str(SOURCES) not in sys.path:
        sys.path.append(str(SOURCES))  # Benchmarks import what they share as `benchmarks.runs`.
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

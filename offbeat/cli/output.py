"""How results are printed: a table of columns, a large number, JSON on an otherwise silent standard output."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from offbeat.errors import OffbeatError


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on one line of standard output; NaN and infinity become null, which every reader knows."""
    click.echo(json.dumps(_plain(data), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows of equal length as aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def short_number(value: float) -> str:
    """`950`, `12.3k`, `1.25M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


@contextmanager
def silent_stdout(active: bool) -> Iterator[None]:
    """While the block runs, whatever this process and its children print goes to standard error."""
    if not active:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def errors_told_once() -> Iterator[None]:
    """While the block runs, Prefect's console leaves errors of ours, and the frames around them, to the caller.

    Its API, and so its UI, still gets them in full.
    """
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(_is_told_by_nobody_else)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_told_by_nobody_else)


def _is_told_by_nobody_else(record: logging.LogRecord) -> bool:
    ours = record.exc_info and isinstance(record.exc_info[1], OffbeatError)
    return not (ours and record.name.startswith("prefect."))

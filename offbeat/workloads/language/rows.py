"""Rows of data from where a configuration says: JSONL, Parquet, CSV, a datasets folder, or a function.

Whatever the source, a row is a mapping of column names to values, and every fault names the file and the row.
"""

import csv
import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat.config.section import MODULE_FUNCTION
from offbeat.errors import ConfigError

Row = dict[str, Any]

MAX_CSV_FIELD = 1 << 27  # Characters; the reader's own limit is 131072.
FORMATS = "a .jsonl, .parquet or .csv file, a datasets folder, or `package.module:function`"


def read_rows(source: str, *, split: str = "train", arguments: Mapping[str, Any] | None = None) -> list[Row]:
    """All rows of a source; raises ConfigError for one that is not there, cannot be read, or is empty.

    split: which part of a datasets folder that has several. arguments: for a function.
    """
    if re.match(MODULE_FUNCTION, source):
        rows = _called(source, arguments or {})
    else:
        path = Path(source)
        if not path.exists():
            raise ConfigError(f"data: {source} is not there; expected {FORMATS}")
        rows = _from_folder(path, split) if path.is_dir() else _from_file(path)
    if not rows:
        raise ConfigError(f"data: {source} holds no rows; at least one is needed")
    return rows


def _from_file(path: Path) -> list[Row]:
    kind = path.suffix.lower()
    try:
        if kind in (".jsonl", ".json", ".ndjson"):
            return _from_jsonl(path)
        if kind == ".csv":
            return _from_csv(path)
        if kind in (".parquet", ".pq"):
            return _from_parquet(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"data: {path} cannot be read: {error}") from error
    raise ConfigError(f"data: got {path}, expected {FORMATS}")


def _from_csv(path: Path) -> list[Row]:
    csv.field_size_limit(MAX_CSV_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows: list[Row] = list(csv.DictReader(stream))
    for index, row in enumerate(rows):
        if None in row:
            more, columns = len(row.pop(None)), len(row)  # type: ignore[call-overload]
            raise ConfigError(f"data: {path} row {index}: got {more} more values than the {columns} columns")
    return rows


def _from_jsonl(path: Path) -> list[Row]:
    rows = []
    # Only \n ends a line: other separators are legal inside a JSON string.
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"data: {path} line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"data: {path} line {number}: got a {type(row).__name__}, expected an object")
        rows.append(row)
    return rows


def _from_parquet(path: Path) -> list[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        rows: list[Row] = parquet.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise ConfigError(f"data: {path} is not a Parquet file: {error}") from error
    return rows


def _from_folder(path: Path, split: str) -> list[Row]:
    from datasets import Dataset, load_from_disk

    try:
        found = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"data: {path} is not a datasets folder (Dataset.save_to_disk writes one): {error}"
        ) from error
    if not isinstance(found, Dataset):
        if split not in found:
            raise ConfigError(f"data: {path} has the splits {', '.join(found)}, expected {split!r} among them")
        found = found[split]
    return [dict(row) for row in found]


def _called(source: str, arguments: Mapping[str, Any]) -> list[Row]:
    module_name, _, name = source.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # Whatever a user's module raises.
        raise ConfigError(f"data: {source} cannot be imported: {_said(error)}") from error
    try:
        rows = list(function(**arguments))
    except Exception as error:
        raise ConfigError(f"data: {source} called with {dict(arguments)}: {_said(error)}") from error
    return [_as_row(row, source) for row in rows]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _as_row(row: Any, source: str) -> Row:
    if not isinstance(row, Mapping):
        raise ConfigError(f"data: {source} returned a {type(row).__name__}, expected mappings of column to value")
    return dict(row)

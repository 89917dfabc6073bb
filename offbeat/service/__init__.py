"""The policy service: newest weights and progress by remote call; the store stays the durable path.

The messages are here at once; PolicyServer and PolicyClient are loaded when first asked for, because gRPC is heavy.
"""

from typing import TYPE_CHECKING, Any

from offbeat.service.base import Progress, ProgressRequest

if TYPE_CHECKING:
    from offbeat.service.flight import PolicyClient, PolicyServer

__all__ = ["PolicyClient", "PolicyServer", "Progress", "ProgressRequest"]


def __getattr__(name: str) -> Any:
    if name not in {"PolicyClient", "PolicyServer"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from offbeat.service import flight

    return getattr(flight, name)

"""How long the command has been at work, as whoever typed it felt it: imports and the server's start included."""

import time

# `offbeat.cli` imports this module before any other.
STARTED_S = time.monotonic()


def elapsed_s() -> float:
    """Seconds since the command began."""
    return time.monotonic() - STARTED_S

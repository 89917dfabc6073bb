"""The process of a follower: how it begins, and that it ends with the first process, however that ends.

Run by the first process (`python -m offbeat.workloads.language.follower_process`, configuration on standard input);
of those that torchrun started, `offbeat trainer` enters each but the first as a follower itself. Signals meant for the
trainer are the first process's matter.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

logger = logging.getLogger(__name__)

PARENT = "OFFBEAT_TEAM_PARENT"
PR_SET_PDEATHSIG = 1
PARENT_POLL_S = 0.5


def ignore_signals() -> None:
    """Leave Ctrl-C and SIGTERM, which a terminal or launcher sends to all, to process 0."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Follow the process that started this one."""
    ignore_signals()
    end_with_parent(int(os.environ[PARENT]))
    said = json.load(sys.stdin)
    # Seconds of imports, in which the first process may end.
    from offbeat.algorithms.determinism import make_deterministic
    from offbeat.config import RunConfig
    from offbeat.errors import WorkloadError
    from offbeat.telemetry import configure_logging
    from offbeat.workloads.language import LanguageWorkload
    from offbeat.workloads.language.team_start import join_started

    configure_logging()
    config = RunConfig.model_validate(said["config"])
    team = join_started(config)
    make_deterministic(config.training.torch_threads)
    try:
        LanguageWorkload(config, base=Path(said["base"])).follow_in(team)
    except WorkloadError as error:
        logger.error("%s", error)
        sys.exit(1)


def end_with_parent(parent: int) -> None:
    """End when process 0 does, at whatever it is then: on Linux even while stopped, by the kernel.

    parent: its process id; it may be gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    main()

"""A trainer process that is not the first: it holds the same parameters and does its share of every step.

Run by the first process (`python -m offbeat.workloads.language.follower`, configuration on standard input), or entered
by `offbeat trainer` in every process but the first that torchrun started. It ends with the first process, however
that ends; signals meant for the trainer are the first process's matter.
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

from offbeat.algorithms.determinism import make_deterministic
from offbeat.config import RunConfig, language_sections
from offbeat.config.language import SamplingConfig
from offbeat.errors import WorkloadError
from offbeat.workloads.language.batches import Completions
from offbeat.workloads.language.checks import score_tokens
from offbeat.workloads.language.learner import parted
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.team import Order, Team
from offbeat.workloads.language.team_start import PARENT, join_started
from offbeat.workloads.language.updates import Updater

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
PARENT_POLL_S = 0.5


def follow(config: RunConfig, policy: LanguagePolicy, team: Team) -> None:
    """Do what process 0 orders until it says that this is the end; raises WorkloadError when it is gone."""
    workload, algorithm = language_sections(config)
    updater = Updater(policy, config, workload, algorithm, team)
    while (order := team.hear()) is not Order.END:
        match order:
            case Order.LEARN:
                team.gather(updater.learn(team.scatter(None)))
            case Order.SCORE:
                asked: tuple[Completions, SamplingConfig] = team.scatter(None)
                score_tokens(policy, *asked, max_tokens=updater.micro_batch_tokens)
            case Order.PARAMETERS:
                policy.weights()
            case Order.STATE:
                updater.state()
            case Order.LOAD:
                policy.load_weights(team.spread(None, None)[0])
            case Order.RESTORE:
                tensors, settings = team.spread(None, None)
                updater.restore(*parted(tensors), settings)
            case Order.DIGEST:
                team.gather(updater.digest(0))


def ignore_signals() -> None:
    """Leave Ctrl-C and SIGTERM, which a terminal or launcher sends to all, to process 0."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Follow the process that started this one."""
    ignore_signals()
    end_with_parent(int(os.environ[PARENT]))
    said = json.load(sys.stdin)
    from offbeat.telemetry import configure_logging
    from offbeat.workloads.language import LanguageWorkload

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

    parent: its process id; it may be gone already, for this process has taken seconds to get here.
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

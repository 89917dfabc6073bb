"""Asynchronous reinforcement-learning post-training, run end to end as Prefect flows.

workload ──> generator ──> log ──> intake ──> batch ──> learner ──┬──> weights (policy version n+1) ──> generator
             (acts with    (durable)  contract,                   │
              version n)              staleness,                  └──> checkpoint ──> verify ──> evaluate ──┐
                                      ledger                                          (MD5)      (seeds)    │
                                                                         registry (champion) <── gate <─────┘

Generators never wait for the trainer, the trainer never waits for them; the durable log lies between. Everything here
is plain library code; the flows and tasks beside this package start, watch and stop it. What stands below is public,
and imported only when it is used: `import offbeat` itself loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offbeat.config import RunConfig, load_config
    from offbeat.errors import OffbeatError
    from offbeat.log import Log, open_log
    from offbeat.runs import Run
    from offbeat.store import Store, open_store
    from offbeat.trajectory import TrajectoryBatch
    from offbeat.workloads import Workload, open_workload

__version__ = "0.1.0"

_HOME_OF = {
    "Log": "offbeat.log",
    "OffbeatError": "offbeat.errors",
    "Run": "offbeat.runs",
    "RunConfig": "offbeat.config",
    "Store": "offbeat.store",
    "TrajectoryBatch": "offbeat.trajectory",
    "Workload": "offbeat.workloads",
    "load_config": "offbeat.config",
    "open_log": "offbeat.log",
    "open_store": "offbeat.store",
    "open_workload": "offbeat.workloads",
}

__all__ = [
    "Log",
    "OffbeatError",
    "Run",
    "RunConfig",
    "Store",
    "TrajectoryBatch",
    "Workload",
    "__version__",
    "load_config",
    "open_log",
    "open_store",
    "open_workload",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

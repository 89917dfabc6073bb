"""The door to MLflow: every import of it, its quirks, and its errors as ours.

Nothing here uses MLflow's fluent interface, whose tracking address and active run are global to the process.
"""

import fcntl
import importlib.metadata
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.errors import RegistryError, RegistryUnavailable

# Set before the import, unless the operator has chosen: no calls home, no lines among ours, and a server
# that is away is reported after seconds; whoever calls decides how often to try again.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
QUIET_LOGGERS = ("alembic", "mlflow.store", "mlflow.system_metrics.system_metrics_monitor")

# How MLflow names a backend that is away: a server that cannot be reached comes as an internal error too.
UNAVAILABLE_CODES = {"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"}

PASSWORD = re.compile(r"(?<=://)([^\s/@:]*):[^\s/]*@")
SQLITE = "sqlite:///"


def masked(text: str) -> str:
    """The text with the password of every address in it replaced by `***`."""
    return PASSWORD.sub(r"\1:***@", text)


def database_file(tracking_uri: str) -> Path | None:
    """File of a SQLite tracking database; None for servers and other databases."""
    name = tracking_uri.removeprefix(SQLITE).partition("?")[0]
    return Path(name).absolute() if tracking_uri.startswith(SQLITE) and name else None


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn what MLflow, its database driver and the file system raise into RegistryError or RegistryUnavailable."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        kind = RegistryUnavailable if error.error_code in UNAVAILABLE_CODES else RegistryError
        raise kind(f"MLflow could not {action}: {masked(str(error))}") from error
    except (SQLAlchemyError, OSError) as error:
        raise RegistryUnavailable(f"MLflow could not {action}: {masked(str(error))}") from error


def has_code(error: RegistryError, codes: Collection[str]) -> bool:
    """Whether MLflow gave one of these codes as the reason."""
    return getattr(error.__cause__, "error_code", None) in codes


def connect(tracking_uri: str) -> Any:
    """An MlflowClient for this address; a SQLite database that does not exist is made, by one process at a time.

    Raises RegistryUnavailable when the address does not answer, RegistryError when it is none.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    file = database_file(tracking_uri)
    with translated(f"open {masked(tracking_uri)}"), _migration_lock(file) if file else nullcontext():
        client = MlflowClient(tracking_uri, registry_uri=tracking_uri)
        # The first question makes or checks the tables of a database; both stores open their own.
        client.search_experiments(max_results=1)
        client.search_registered_models(max_results=1)
    return client


@contextmanager
def _migration_lock(file: Path) -> Iterator[None]:
    # MLflow's migrations are not safe against a second process that starts them on the same new file.
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise PermissionError(f"{file} cannot be written")
    with file.with_name(f".{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def metric(key: str, value: float, timestamp_ms: int, step: int) -> Any:
    """One metric value as MLflow's entity."""
    from mlflow.entities import Metric

    return Metric(key, value, timestamp_ms, step)


def param(key: str, value: str) -> Any:
    """One parameter as MLflow's entity."""
    from mlflow.entities import Param

    return Param(key, value)


def system_monitor(tracking_uri: str, run_id: str, interval_s: float) -> Any:
    """MLflow's own sampler of this machine's CPU, memory, disk, network and GPUs, for one run; not yet started."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    make: Any = SystemMetricsMonitor
    return make(run_id, sampling_interval=interval_s, resume_logging=True, tracking_uri=tracking_uri)


def save_pyfunc(
    folder: Path, *, loader_module: str, policy_folder: Path, model_id: str, input_example: np.ndarray[Any, Any] | None
) -> None:
    """Write an MLflow model that opens `policy_folder` with `loader_module`; nothing is loaded, run or looked up."""
    import mlflow.pyfunc
    from mlflow.models import Model

    # Requirements are stated, not inferred: inference would import the model in a process of its own.
    mlflow.pyfunc.save_model(
        str(folder),
        loader_module=loader_module,
        data_path=str(policy_folder),
        mlflow_model=Model(model_id=model_id),
        input_example=input_example,
        pip_requirements=[f"offbeat=={importlib.metadata.version('offbeat')}"],
    )


def download_data(uri: str, folder: Path, *, tracking_uri: str) -> Path:
    """Fetch a pyfunc model into `folder` and return where in it the model's own data lies."""
    from mlflow.models import Model
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    folder.mkdir(parents=True, exist_ok=True)
    source: Any = get_artifact_repository(uri, tracking_uri=tracking_uri)
    local = Path(str(source.download_artifacts("", str(folder))))
    data: Any = Model.load(str(local)).flavors.get("python_function", {}).get("data")
    if not data or not (local / data).is_dir():
        raise RegistryError(f"model at {masked(uri)}: got no data folder in it, expected a policy")
    return local / str(data)


def pages(search: Any, **arguments: Any) -> Iterable[Any]:
    """Every result of one of MLflow's paged searches."""
    token = None
    while True:
        page = search(page_token=token, **arguments)
        yield from page
        token = page.token
        if not token:
            return

"""A lifecycle's MLflow run: parameters, metrics in batches, files, figures and the machine's own load."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offbeat.errors import RegistryError
from offbeat.registry.client import database_file, has_code, masked, metric, param, system_monitor, translated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MetricRow = tuple[int, int, Mapping[str, float]]  # step, Unix time in ms, values by name
RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

MAX_METRICS = 1_000  # What MLflow takes in one request.
MAX_PARAMS = 100


class Tracking:
    """The part of the registry that writes runs."""

    def __init__(self, client: Any, tracking_uri: str, *, experiment: str, artifact_root: Path | None) -> None:
        self._client = client
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._artifact_root = artifact_root

    def start_run(
        self, name: str, *, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None = None
    ) -> str:
        """Begin a run, or continue `run_id`, and return its MLflow id.

        MLflow's parameters never change: on a continued run new ones are added, and one that differs is kept as the
        tag `resumed.<name>`. Passwords inside addresses are masked.
        """
        wanted = {key: masked(str(value)) for key, value in params.items()}
        labels = {key: masked(value) for key, value in tags.items()}
        with translated(f"start run {name!r}"):
            if run_id is None:
                run_id = str(self._client.create_run(self._experiment_id(), run_name=name, tags=labels).info.run_id)
                known: Mapping[str, str] = {}
            else:
                known = self._client.get_run(run_id).data.params
                self._client.update_run(run_id, status="RUNNING")
                labels |= {f"resumed.{key}": value for key, value in wanted.items() if known.get(key, value) != value}
                for key, value in labels.items():
                    self._client.set_tag(run_id, key, value)
            fresh = [param(key, value) for key, value in wanted.items() if key not in known]
            for at in range(0, len(fresh), MAX_PARAMS):
                self._client.log_batch(run_id, params=fresh[at : at + MAX_PARAMS])
        return run_id

    def log_metrics(self, run_id: str, rows: Sequence[MetricRow]) -> int:
        """Write metric rows, 1,000 values a request, and return how many values were NaN or infinite and left out.

        A row written again with the same step and time counts once.
        """
        values = [(key, float(value), when, step) for step, when, row in rows for key, value in row.items()]
        finite = [metric(*value) for value in values if math.isfinite(value[1])]
        with translated(f"log {len(finite)} metrics"):
            for at in range(0, len(finite), MAX_METRICS):
                self._client.log_batch(run_id, metrics=finite[at : at + MAX_METRICS])
        return len(values) - len(finite)

    def log_artifacts(self, run_id: str, path: Path, *, folder: str | None = None) -> None:
        """Keep a file, or everything in a folder, with the run; `folder` is where in its artifacts."""
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        with translated(f"keep {path}"):
            log(run_id, str(path), folder)

    def log_figure(self, run_id: str, figure: "Figure", name: str) -> str:
        """Keep a figure as an image (`name` ends in .png) and return its address."""
        with translated(f"keep the figure {name}"):
            self._client.log_figure(run_id, figure, name)
            return f"{self._client.get_run(run_id).info.artifact_uri}/{name}"

    def log_table(self, run_id: str, rows: Sequence[Mapping[str, str]], name: str) -> None:
        """Keep rows of equal columns as a table (`name` ends in .json) that MLflow shows; one that is there stays.

        MLflow itself would append the rows to a table of the same name, so that an attempt made again doubled them.
        """
        folder = name.rpartition("/")[0] or None
        with translated(f"keep the table {name}"):
            if any(found.path == name for found in self._client.list_artifacts(run_id, folder)):
                return
            self._client.log_table(run_id, {column: [row[column] for row in rows] for column in rows[0]}, name)

    @contextmanager
    def system_metrics(self, run_id: str, *, interval_s: float) -> Iterator[None]:
        """Sample this machine's CPU, memory, disk, network and GPUs as `system/...` metrics while the block runs."""
        with translated("watch the machine"):
            monitor = system_monitor(self._tracking_uri, run_id, interval_s)
        monitor.start()
        try:
            yield
        finally:
            monitor.finish()

    def finish_run(self, run_id: str, status: RunStatus) -> None:
        """End a run."""
        with translated(f"finish run {run_id}"):
            self._client.set_terminated(run_id, status)

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return str(found.experiment_id) if found else self._make_experiment()

    def _make_experiment(self) -> str:
        root = self._artifact_root or _beside_database(self._tracking_uri)
        location = root.absolute().as_uri() if root else None  # A server knows its own place.
        try:
            with translated(f"create experiment {self._experiment!r}"):
                return str(self._client.create_experiment(self._experiment, artifact_location=location))
        except RegistryError as error:
            # Another process was first.
            if not has_code(error, {"RESOURCE_ALREADY_EXISTS"}):
                raise
            return str(self._client.get_experiment_by_name(self._experiment).experiment_id)


def _beside_database(tracking_uri: str) -> Path | None:
    file = database_file(tracking_uri)
    return file.parent / "mlartifacts" if file else None

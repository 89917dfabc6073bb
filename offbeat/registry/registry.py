"""Registered model versions and the aliases that say which one is in use.

    register_version: alias `challenger` ──> promote: alias `champion`, the former one `previous` ──> rollback: back

The registered model's tag `champions` holds the line of champions, oldest first; rollback walks it backwards.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.errors import RegistryError
from offbeat.registry.client import connect, download_data, has_code, masked, pages, save_pyfunc, translated
from offbeat.registry.tracking import Tracking

CHAMPION = "champion"
PREVIOUS = "previous"
CHALLENGER = "challenger"
CHAMPIONS_TAG = "champions"
MAX_CHAMPIONS = 500  # Keeps the tag well below MLflow's limit of 5,000 characters.

MISSING = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
EXISTS = frozenset({"RESOURCE_ALREADY_EXISTS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One registered version. `uri` loads with mlflow.pyfunc.load_model; `tags` hold its lineage."""

    name: str
    version: int
    uri: str
    tags: Mapping[str, str] = field(default_factory=dict)


class Registry(Tracking):
    """An MLflow server or database; one instance for one process.

    artifact_root: folder for the files of a new experiment; by default `mlartifacts` beside a SQLite database, and
    the server's own place otherwise. Every method may raise RegistryUnavailable (worth trying again).
    """

    def __init__(self, tracking_uri: str, *, experiment: str, artifact_root: Path | None = None) -> None:
        super().__init__(connect(tracking_uri), tracking_uri, experiment=experiment, artifact_root=artifact_root)

    def register_version(
        self,
        name: str,
        *,
        run_id: str,
        policy_folder: Path,
        loader_module: str,
        tags: Mapping[str, str],
        input_example: np.ndarray[Any, Any] | None = None,
    ) -> ModelVersion:
        """Register a policy as the next version, with the alias `challenger`.

        run_id: the MLflow run it comes from. loader_module: has `_load_pyfunc(folder)`, called when the model is
        loaded with a copy of `policy_folder`. tags: its lineage (flow_run_id, git_revision, config_digest,
        checkpoint_digest, ledger_range, run_id, step, environment).
        """
        labels = {key: masked(value) for key, value in tags.items()}
        with translated(f"register {policy_folder} as {name!r}"):
            model = self._upload(run_id, policy_folder, loader_module, labels, input_example)
            self._make_registered_model(name)
            # A server looks models up itself and takes no paths; without one MLflow would look in its global address.
            source = model.model_uri if self._tracking_uri.startswith("http") else model.artifact_location
            found = self._client.create_model_version(
                name, source=source, run_id=run_id, tags=labels, model_id=model.model_id
            )
            self._client.set_registered_model_alias(name, CHALLENGER, str(found.version))
        return _model_version(found)

    def champion(self, name: str) -> ModelVersion | None:
        """The version in use, None before there is one."""
        return self._aliased(name, CHAMPION)

    def promote(self, name: str, version: int) -> None:
        """Make `version` the champion; the former one gets the alias `previous` and stays in the line for rollback."""
        with translated(f"promote {name!r} version {version}"):
            self._client.get_model_version(name, str(version))
            line = self._champions(name)
            if line[-1:] != [version]:
                self._move(name, [*line, version])
            if self._aliases(name).get(CHALLENGER) == version:
                self._client.delete_registered_model_alias(name, CHALLENGER)

    def rollback(self, name: str) -> ModelVersion:
        """Make the version before the champion the champion again; once more goes one further back.

        Versions deleted meanwhile are passed over. Raises RegistryError when there is none before.
        """
        with translated(f"roll {name!r} back"):
            kept = {version.version for version in self.versions(name)}
            line = self._champions(name)
            back = [version for version in line[:-1] if version in kept]
            if not back:
                got = f"version {line[-1]} is the first" if line else "there is none"
                raise RegistryError(
                    f"model {name!r} has no champion to roll back to: {got}; `offbeat models {name}` lists its"
                    f" versions, and MLflow can give the alias {CHAMPION!r} to any of them"
                )
            self._move(name, back)
        return self._require(name, CHAMPION)

    def versions(self, name: str) -> list[ModelVersion]:
        """All versions, oldest first; empty for an unknown model."""
        return self._search(f"name = '{_quoted(name)}'")

    def referenced_steps(self, run_id: str) -> set[int]:
        """Checkpoint steps that registered versions of this run come from (`run_id`: Offbeat's, as in the tags)."""
        found = self._search(f"tags.run_id = '{_quoted(run_id)}'")
        return {int(version.tags["step"]) for version in found if version.tags.get("step", "").isdigit()}

    def download_policy(self, version: ModelVersion, folder: Path) -> Path:
        """Fetch a version into `folder` and return the policy folder in it, as a checkpoint's `policy/`."""
        with translated(f"fetch {version.uri}"):
            uri = self._client.get_model_version_download_uri(version.name, str(version.version))
            return download_data(uri, folder, tracking_uri=self._tracking_uri)

    def _upload(
        self,
        run_id: str,
        policy_folder: Path,
        loader_module: str,
        tags: Mapping[str, str],
        input_example: np.ndarray[Any, Any] | None,
    ) -> Any:
        experiment = self._client.get_run(run_id).info.experiment_id
        model = self._client.create_logged_model(experiment, name="policy", source_run_id=run_id, tags=dict(tags))
        with tempfile.TemporaryDirectory(prefix="offbeat-model-") as folder:
            saved = Path(folder) / "model"
            save_pyfunc(
                saved,
                loader_module=loader_module,
                policy_folder=policy_folder,
                model_id=model.model_id,
                input_example=input_example,
            )
            self._client.log_model_artifacts(model.model_id, str(saved))
        return self._client.finalize_logged_model(model.model_id, "READY")

    def _make_registered_model(self, name: str) -> None:
        try:
            with translated(f"create model {name!r}"):
                self._client.create_registered_model(name)
        except RegistryError as error:
            if not has_code(error, EXISTS):
                raise

    def _registered_model(self, name: str) -> Any | None:
        try:
            with translated(f"look up model {name!r}"):
                return self._client.get_registered_model(name)
        except RegistryError as error:
            if has_code(error, MISSING):
                return None
            raise

    def _aliases(self, name: str) -> dict[str, int]:
        model = self._registered_model(name)
        return {alias: int(version) for alias, version in model.aliases.items()} if model else {}

    def _aliased(self, name: str, alias: str) -> ModelVersion | None:
        version = self._aliases(name).get(alias)
        if version is None:
            return None
        with translated(f"look up {name!r} version {version}"):
            return _model_version(self._client.get_model_version(name, str(version)))

    def _require(self, name: str, alias: str) -> ModelVersion:
        found = self._aliased(name, alias)
        if found is None:
            raise RegistryError(f"model {name!r}: got no alias {alias!r}, expected one version to carry it")
        return found

    def _champions(self, name: str) -> list[int]:
        """The line of champions; it ends with the present one, also when its alias was moved by hand."""
        model = self._registered_model(name)
        if model is None:
            return []
        line = [int(version) for version in model.tags.get(CHAMPIONS_TAG, "").split(",") if version]
        present = model.aliases.get(CHAMPION)
        return line if present is None or line[-1:] == [int(present)] else [*line, int(present)]

    def _move(self, name: str, line: list[int]) -> None:
        self._client.set_registered_model_alias(name, CHAMPION, str(line[-1]))
        self._client.set_registered_model_tag(name, CHAMPIONS_TAG, ",".join(map(str, line[-MAX_CHAMPIONS:])))
        if len(line) > 1:
            self._client.set_registered_model_alias(name, PREVIOUS, str(line[-2]))
        elif PREVIOUS in self._aliases(name):
            self._client.delete_registered_model_alias(name, PREVIOUS)

    def _search(self, where: str) -> list[ModelVersion]:
        with translated("list model versions"):
            found = [
                _model_version(version) for version in pages(self._client.search_model_versions, filter_string=where)
            ]
        return sorted(found, key=lambda version: (version.name, version.version))


def _model_version(found: Any) -> ModelVersion:
    number = int(found.version)
    return ModelVersion(name=found.name, version=number, uri=f"models:/{found.name}/{number}", tags=dict(found.tags))


def _quoted(text: str) -> str:
    if "'" in text:
        raise RegistryError(f"got {text!r}, expected a name without quotes")
    return text

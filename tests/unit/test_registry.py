import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from offbeat.errors import RegistryError, RegistryUnavailable
from offbeat.learning_curve import draw_learning_curve
from offbeat.registry import ModelVersion, Registry, masked
from offbeat.registry.client import database_file

LINEAGE = {"run_id": "demo-1", "step": "1000", "checkpoint_digest": "00ff", "ledger_range": "1..1000"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a home")  # The space is meant: MLflow's addresses are URLs.


@pytest.fixture(scope="module")
def registry(home: Path) -> Registry:
    return Registry(f"sqlite:///{home / 'mlflow.db'}", experiment="demo")


@pytest.fixture
def run_id(registry: Registry) -> Iterator[str]:
    run_id = registry.start_run("demo-1", params={"seed": 0}, tags={})
    yield run_id
    registry.finish_run(run_id, "FINISHED")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "policy.json").write_text("{}")
    return folder


def register(registry: Registry, name: str, mlflow_id: str, policy: Path, **tags: str) -> ModelVersion:
    return registry.register_version(
        name, run_id=mlflow_id, policy_folder=policy, loader_module="json", tags={**LINEAGE, **tags}
    )


def aliases(registry: Registry, name: str) -> dict[str, int]:
    return {alias: int(version) for alias, version in registry._client.get_registered_model(name).aliases.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:secret@host:5000/x", "https://me:***@host:5000/x"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("https://me:se@cret@host", "https://me:***@host"),
        ("two: http://a:b@c and http://d:e@f", "two: http://a:***@c and http://d:***@f"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
    ],
)
def test_passwords_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_database_file_of_an_address() -> None:
    assert database_file("sqlite:////srv/mlflow.db?timeout=5") == Path("/srv/mlflow.db")
    assert database_file("sqlite:///here.db") == Path.cwd() / "here.db"
    assert database_file("https://host") is None
    assert database_file("postgresql://host/db") is None


def test_files_of_runs_lie_beside_the_database(registry: Registry, home: Path, run_id: str, policy: Path) -> None:
    registry.log_artifacts(run_id, policy, folder="checkpoint")
    registry.log_artifacts(run_id, policy / "policy.json")
    found = {path.name for path in (home / "mlartifacts" / run_id / "artifacts").rglob("*")}
    assert found == {"checkpoint", "policy.json"}
    assert not Path("mlruns").exists()
    assert not Path("mlartifacts").exists()


def test_a_table_is_kept_once(registry: Registry, home: Path, run_id: str) -> None:
    rows = [{"prompt": "1+1=", "completion": "2 \N{SNOWMAN}"}, {"prompt": "2+2=", "completion": ""}]
    for _ in range(2):  # An attempt that failed later is made again.
        registry.log_table(run_id, rows, "samples/step-1.json")
    kept = json.loads((home / "mlartifacts" / run_id / "artifacts" / "samples" / "step-1.json").read_text())
    assert kept == {"columns": ["prompt", "completion"], "data": [["1+1=", "2 \N{SNOWMAN}"], ["2+2=", ""]]}


def test_artifact_root_decides_for_a_new_experiment(home: Path, tmp_path: Path, policy: Path) -> None:
    registry = Registry(f"sqlite:///{home / 'mlflow.db'}", experiment="elsewhere", artifact_root=tmp_path / "files")
    run_id = registry.start_run("demo-2", params={}, tags={})
    registry.log_artifacts(run_id, policy)
    assert (tmp_path / "files" / run_id / "artifacts" / "policy.json").is_file()


def test_params_are_kept_with_passwords_masked(registry: Registry) -> None:
    many = {f"p{at}": at for at in range(150)}  # More than one request takes.
    run_id = registry.start_run("demo-1", params={**many, "uri": "http://a:b@c"}, tags={"source": "http://a:b@c"})
    data = registry._client.get_run(run_id).data
    assert len(data.params) == 151
    assert data.params["uri"] == data.tags["source"] == "http://a:***@c"


def test_a_resumed_run_goes_on_under_its_id(registry: Registry) -> None:
    first = registry.start_run("demo-1", params={"batch_size": 8}, tags={"flow_run_id": "one"})
    registry.finish_run(first, "KILLED")
    again = registry.start_run("demo-1", params={"batch_size": 16, "new": 1}, tags={"flow_run_id": "two"}, run_id=first)
    found = registry._client.get_run(first)
    assert again == first
    assert found.info.status == "RUNNING"
    assert found.data.params == {"batch_size": "8", "new": "1"}
    assert (found.data.tags["resumed.batch_size"], found.data.tags["flow_run_id"]) == ("16", "two")


def test_an_unknown_run_cannot_be_continued(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="could not start run 'demo-1'") as error:
        registry.start_run("demo-1", params={}, tags={}, run_id="0" * 32)
    assert not isinstance(error.value, RegistryUnavailable)


def test_metrics_in_batches_without_what_is_not_finite(registry: Registry, run_id: str) -> None:
    rows = [(step, 1_700_000_000_000 + step, {"loss": step / 2, "a": 1.0, "b": 2.0}) for step in range(800)]
    rows.append((800, 1_700_000_000_800, {"loss": float("nan"), "a": float("inf"), "b": 3.0}))
    assert registry.log_metrics(run_id, rows) == 2
    history = registry._client.get_metric_history(run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, step / 2) for step in range(800)]
    assert registry._client.get_run(run_id).data.metrics["b"] == 3.0


def test_metrics_written_twice_count_once(registry: Registry, run_id: str) -> None:
    rows = [(1, 1_700_000_000_000, {"loss": 0.5}), (2, 1_700_000_000_001, {"loss": 0.25})]
    registry.log_metrics(run_id, rows)
    registry.log_metrics(run_id, rows)
    assert len(registry._client.get_metric_history(run_id, "loss")) == 2


def test_learning_curve_is_kept_as_an_image(registry: Registry, run_id: str) -> None:
    figure = draw_learning_curve([1, 2, 3], [1.0, float("nan"), 3.0], title="demo-1", target=2)
    line, smooth, threshold = figure.axes[0].lines
    assert line.get_xdata().tolist() == [1, 3]
    assert smooth.get_ydata().tolist() == [1.0, 3.0]  # Too few points to smooth.
    assert threshold.get_ydata() == [2, 2]
    uri = registry.log_figure(run_id, figure, "learning_curve.png")
    image = Path(registry._client.download_artifacts(run_id, "learning_curve.png"))
    assert uri.endswith("/artifacts/learning_curve.png")
    assert image.read_bytes().startswith(b"\x89PNG")


def test_running_mean_by_hand() -> None:
    # 100 points reach 2 to either side: the third is the mean of 0 .. 4, the first of 0, 1, 2.
    figure = draw_learning_curve(range(100), [float(value) for value in range(100)], title="demo")
    smooth = figure.axes[0].lines[1].get_ydata()
    assert smooth[:3].tolist() == [1.0, 1.5, 2.0]
    assert smooth[-1] == 98.0


def test_versions_count_up_and_the_newest_is_the_challenger(registry: Registry, run_id: str, policy: Path) -> None:
    first, second = (register(registry, "counted", run_id, policy) for _ in range(2))
    assert (first.version, first.uri, first.tags["checkpoint_digest"]) == (1, "models:/counted/1", "00ff")
    assert [version.version for version in registry.versions("counted")] == [1, 2]
    assert aliases(registry, "counted") == {"challenger": second.version}
    assert registry.champion("counted") is None


def test_unknown_models_have_no_versions(registry: Registry) -> None:
    assert registry.versions("nobody") == []
    assert registry.champion("nobody") is None


def test_promotion_keeps_the_former_champion(registry: Registry, run_id: str, policy: Path) -> None:
    for version in (1, 2):
        register(registry, "promoted", run_id, policy)
        registry.promote("promoted", version)
    assert aliases(registry, "promoted") == {"champion": 2, "previous": 1}
    champion = registry.champion("promoted")
    assert champion is not None
    assert champion.version == 2


def test_promoting_the_champion_again_changes_nothing(registry: Registry, run_id: str, policy: Path) -> None:
    for version in (1, 2):
        register(registry, "twice", run_id, policy)
        registry.promote("twice", version)
    registry.promote("twice", 2)
    assert registry.rollback("twice").version == 1


def test_rollback_walks_back_along_the_line(registry: Registry, run_id: str, policy: Path) -> None:
    for _ in range(3):
        register(registry, "walked", run_id, policy)
    for version in (1, 2, 1, 3):  # Version 1 comes back by hand, and must not make the walk turn in a circle.
        registry.promote("walked", version)
    assert [registry.rollback("walked").version for _ in range(3)] == [1, 2, 1]
    assert "previous" not in aliases(registry, "walked")
    with pytest.raises(RegistryError, match="no champion to roll back to: version 1 is the first; `offbeat models "):
        registry.rollback("walked")


def test_rollback_then_promotion_forgets_what_was_rolled_back(registry: Registry, run_id: str, policy: Path) -> None:
    for _ in range(3):
        register(registry, "branched", run_id, policy)
    registry.promote("branched", 1)
    registry.promote("branched", 2)
    registry.rollback("branched")
    registry.promote("branched", 3)
    assert registry.rollback("branched").version == 1


def test_rollback_passes_over_deleted_versions(registry: Registry, run_id: str, policy: Path) -> None:
    for version in (1, 2, 3):
        register(registry, "deleted", run_id, policy)
        registry.promote("deleted", version)
    registry._client.delete_model_version("deleted", "2")
    assert registry.rollback("deleted").version == 1


def test_a_champion_chosen_by_hand_joins_the_line(registry: Registry, run_id: str, policy: Path) -> None:
    for _ in range(3):
        register(registry, "by-hand", run_id, policy)
    registry.promote("by-hand", 1)
    registry._client.set_registered_model_alias("by-hand", "champion", "2")
    registry.promote("by-hand", 3)
    assert [registry.rollback("by-hand").version for _ in range(2)] == [2, 1]


def test_nothing_to_roll_back_or_promote_is_said(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="model 'empty' has no champion to roll back to: there is none"):
        registry.rollback("empty")
    with pytest.raises(RegistryError, match="could not promote 'empty' version 1"):
        registry.promote("empty", 1)


def test_steps_that_versions_of_a_run_come_from(registry: Registry, run_id: str, policy: Path) -> None:
    for name, run, step in (("x", "kept-1", "10"), ("y", "kept-1", "20"), ("x", "kept-2", "30"), ("x", "kept-1", "?")):
        register(registry, name, run_id, policy, run_id=run, step=step)
    assert registry.referenced_steps("kept-1") == {10, 20}
    assert registry.referenced_steps("nobody") == set()
    with pytest.raises(RegistryError, match="without quotes"):
        registry.referenced_steps("a' or 'b")


def test_policy_comes_back_byte_for_byte(
    registry: Registry, run_id: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    version = register(registry, "fetched", run_id, policy)
    folder = registry.download_policy(version, tmp_path / "fetched")
    assert folder.is_relative_to(tmp_path / "fetched")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"policy.json": b"{}"}
    assert list(Path.cwd().iterdir()) == []  # MLflow's global address is a database in the current folder.


def test_policy_whose_files_are_gone_is_an_error(registry: Registry, run_id: str, policy: Path, tmp_path: Path) -> None:
    version = register(registry, "lost", run_id, policy)
    source = Path(registry._client.get_model_version_download_uri("lost", "1").removeprefix("file://"))
    for path in Path(str(source).replace("%20", " ")).rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(RegistryError) as error:
        registry.download_policy(version, tmp_path / "fetched")
    assert not isinstance(error.value, RegistryUnavailable)


def test_system_metrics_are_sampled(registry: Registry, run_id: str) -> None:
    import time

    with registry.system_metrics(run_id, interval_s=0.1):
        deadline = time.monotonic() + 20
        while not (found := _system_metrics(registry, run_id)) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= found


def _system_metrics(registry: Registry, run_id: str) -> set[str]:
    return {key for key in registry._client.get_run(run_id).data.metrics if key.startswith("system/")}


def test_status_of_a_finished_run(registry: Registry) -> None:
    run_id = registry.start_run("demo-1", params={}, tags={})
    registry.finish_run(run_id, "FAILED")
    assert registry._client.get_run(run_id).info.status == "FAILED"


def test_a_server_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryUnavailable, match=r"could not open http://me:\*\*\*@127.0.0.1:9") as error:
        Registry("http://me:secret@127.0.0.1:9", experiment="demo")
    assert "secret" not in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RegistryUnavailable, match="cannot be written"):
        Registry(f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="demo")


def test_a_file_in_the_place_of_the_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryUnavailable, match="could not open"):
        Registry(f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}", experiment="demo")


def test_a_file_that_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database " * 1000)
    with pytest.raises(RegistryError, match="could not open"):
        Registry(f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="demo")


@pytest.mark.parametrize("uri", ["gopher://host", "file:///tmp/mlruns"])
def test_an_address_that_mlflow_does_not_take_is_said(uri: str) -> None:
    with pytest.raises(RegistryError, match="could not open"):
        Registry(uri, experiment="demo")

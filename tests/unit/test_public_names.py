"""What `import offbeat` promises: these names, no others, and no work before they are used."""

import subprocess
import sys

import pytest

import offbeat

PUBLIC = {
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
}
HEAVY = ("torch", "prefect", "mlflow", "great_expectations", "gymnasium", "pandas", "pyarrow", "pydantic", "matplotlib")


def test_the_public_names_are_these() -> None:
    assert set(offbeat.__all__) == PUBLIC
    assert set(dir(offbeat)) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(offbeat, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = offbeat.nothing


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("offbeat", HEAVY),
        ("offbeat.config", ("torch", "prefect", "mlflow", "great_expectations", "gymnasium", "pandas", "matplotlib")),
        ("offbeat.runs", ("torch", "prefect", "mlflow", "great_expectations", "gymnasium", "pandas", "matplotlib")),
        ("offbeat.trajectory", ("torch", "prefect", "mlflow", "great_expectations", "pandas")),
        ("offbeat.cli", ("torch", "prefect", "mlflow", "great_expectations", "gymnasium", "pandas", "matplotlib")),
    ],
)
def test_importing_stays_light(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_the_version_is_the_distribution_s() -> None:
    from importlib.metadata import version

    assert offbeat.__version__ == version("offbeat")

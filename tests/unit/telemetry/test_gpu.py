"""Utilisation of GPUs, with stand-ins for torch and the driver: there is no GPU where these tests run."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from offbeat.telemetry import GeneratorMetrics, TrainerMetrics
from offbeat.telemetry.gpu import gpu_utilization


class NVMLError(Exception):
    """What the driver's package raises; no RuntimeError."""


def use_gpus(monkeypatch: pytest.MonkeyPatch, *percent: int, error: Exception | None = None) -> None:
    def utilization(index: int) -> int:
        if error is not None:
            raise error
        return percent[index]

    cuda = SimpleNamespace(
        is_initialized=lambda: bool(percent), device_count=lambda: len(percent), utilization=utilization
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_each_visible_device_is_shown_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, 0, 25, 100)
    assert gpu_utilization() == {"cuda:0": 0.0, "cuda:1": 0.25, "cuda:2": 1.0}


def test_without_torch_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert gpu_utilization() == {}
    assert "torch" not in sys.modules


def test_a_process_that_has_not_begun_to_use_one_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch)
    assert gpu_utilization() == {}


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("nvidia-ml-py"), RuntimeError("driver"), NVMLError("Not Supported")], ids=repr
)
def test_a_driver_that_does_not_tell_costs_the_series_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    driver = ModuleType("pynvml")
    monkeypatch.setattr(driver, "NVMLError", NVMLError, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    use_gpus(monkeypatch, 50, error=error)
    assert gpu_utilization() == {}


@pytest.mark.parametrize("metrics", [TrainerMetrics(), GeneratorMetrics()], ids=["trainer", "generator"])
def test_both_sides_show_it_and_no_series_without_a_gpu(
    metrics: TrainerMetrics | GeneratorMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert b"offbeat_gpu_utilization_ratio{" not in metrics.exposition("text/plain")[1]
    use_gpus(monkeypatch, 25)
    assert b'offbeat_gpu_utilization_ratio{device="cuda:0"} 0.25' in metrics.exposition("text/plain")[1]

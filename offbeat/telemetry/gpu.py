"""How busy the GPUs of this process are, asked when somebody reads the metrics."""

import sys
from typing import Any


def gpu_utilization() -> dict[str, float]:
    """Share of the driver's last sample (a second at most) that each visible GPU computed, 0 to 1, by `cuda:<index>`.

    Empty in a process that uses none, and where the driver does not tell: without the package nvidia-ml-py, or on a
    part of a GPU.
    """
    torch: Any = sys.modules.get("torch")  # Who has not loaded it uses no GPU.
    if torch is None or not torch.cuda.is_initialized():
        return {}
    try:
        return {f"cuda:{index}": torch.cuda.utilization(index) / 100 for index in range(torch.cuda.device_count())}
    except _refusals():
        return {}


def _refusals() -> tuple[type[Exception], ...]:
    driver: Any = sys.modules.get("pynvml")
    return (ImportError, RuntimeError) if driver is None else (ImportError, RuntimeError, driver.NVMLError)

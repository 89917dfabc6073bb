"""What an operator sees of a process: metrics, an HTTP endpoint and log lines. It reads; it never steers."""

from offbeat.telemetry.http import Health, MetricsSource, StatusServer
from offbeat.telemetry.logs import TrajectoryLogLine, configure_logging
from offbeat.telemetry.metrics import GeneratorMetrics, ProcessMetrics, TrainerMetrics
from offbeat.telemetry.rates import BusyRatio, RecentPercentiles, WindowRate

__all__ = [
    "BusyRatio",
    "GeneratorMetrics",
    "Health",
    "MetricsSource",
    "ProcessMetrics",
    "RecentPercentiles",
    "StatusServer",
    "TrainerMetrics",
    "TrajectoryLogLine",
    "WindowRate",
    "configure_logging",
]

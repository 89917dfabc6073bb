"""MLflow: one run per lifecycle, its metrics and files, the registered model versions and their aliases.

    start_run ──> log_metrics, log_figure, log_table, log_artifacts, system_metrics ──> finish_run
                      │
                      └──> register_version (alias challenger) ──> promote (champion, previous) ──> rollback

`client` is the one module that imports mlflow, and only when a registry is opened: the import takes two seconds.
"""

from offbeat.registry.client import masked
from offbeat.registry.registry import ModelVersion, Registry
from offbeat.registry.tracking import MetricRow

__all__ = ["MetricRow", "ModelVersion", "Registry", "masked"]

"""Register: the verified policy as the next model version, with its lineage."""

from prefect import runtime, task

from offbeat.lifecycle.lineage import lineage_tags
from offbeat.lifecycle.relay import MetricsRelay
from offbeat.lifecycle.stages import keep_evaluation as keep_evaluation_of
from offbeat.lifecycle.stages import keep_learning_curve, register_checkpoint
from offbeat.registry import ModelVersion, Registry
from offbeat.runs import Run
from offbeat.trainer.checkpoint import Checkpoint
from offbeat.workloads import Scores
from tasks.patience import PATIENT


@task(name="register", timeout_seconds=1800, **PATIENT)
def register(run: Run, registry: Registry, checkpoint: Checkpoint, mlflow_id: str) -> ModelVersion:
    """The new version, under the alias `challenger`."""
    tags = lineage_tags(run, checkpoint, flow_run_id=str(runtime.flow_run.id))
    return register_checkpoint(run, registry, checkpoint, mlflow_id=mlflow_id, tags=tags)


@task(name="mlflow-run", timeout_seconds=600, **PATIENT)
def open_mlflow_run(relay: MetricsRelay) -> str:
    """The run's MLflow id, with every step's metrics sent; raises RegistryUnavailable while MLflow is away."""
    mlflow_id = relay.mlflow_id()
    relay.push()
    return mlflow_id


@task(name="learning-curve", timeout_seconds=600, **PATIENT)
def keep_curve(run: Run, registry: Registry, mlflow_id: str) -> str:
    """The address of the learning curve's image in MLflow."""
    return keep_learning_curve(run, registry, mlflow_id=mlflow_id)


@task(name="keep-evaluation", timeout_seconds=600, **PATIENT)
def keep_evaluation(run: Run, registry: Registry, checkpoint: Checkpoint, scores: Scores, mlflow_id: str) -> None:
    """The evaluation's numbers as metrics in MLflow, its examples as a table where there are any."""
    keep_evaluation_of(run, registry, checkpoint, scores, mlflow_id=mlflow_id)

"""What one run may be told: every key with its default, its bounds and a description.

Every section is frozen and refuses unknown keys. Sections that differ by kind (workload, algorithm) are chosen by
their `kind`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from offbeat.config.control import AppoConfig, ControlConfig
from offbeat.config.language import GrpoConfig, LanguageConfig
from offbeat.config.section import Section
from offbeat.errors import ConfigError

DEVICE = r"^(cpu|cuda(:\d+)?|mps)$"


def _kind(section: Any) -> Any:
    return section.get("kind") if isinstance(section, dict) else getattr(section, "kind", None)


def _kind_or(default: str) -> Discriminator:
    """Choose a union's member by `kind`, which may be left out for the default one."""
    return Discriminator(lambda given: given.get("kind", default) if isinstance(given, dict) else given.kind)


WorkloadConfig = Annotated[
    Annotated[ControlConfig, Tag("control")] | Annotated[LanguageConfig, Tag("language")], _kind_or("control")
]
AlgorithmConfig = Annotated[Annotated[AppoConfig, Tag("appo")] | Annotated[GrpoConfig, Tag("grpo")], _kind_or("appo")]


class GeneratorConfig(Section):
    """The generators."""

    num_generators: int = Field(2, ge=1, le=1024, description="Generator processes.")
    torch_threads: int = Field(1, ge=1, le=256, description="Threads of each generator's policy.")
    device: str = Field("cpu", pattern=DEVICE, description="Device of each generator's policy.")
    max_env_errors: int = Field(
        3, ge=0, le=1_000_000, description="Environment failures in a row before the generator fails."
    )
    record_bytes: int = Field(1 << 20, ge=1 << 10, le=64 << 20, description="Target size of one log record, in bytes.")


class LogConfig(Section):
    """The trajectory log."""

    kind: Literal["sqlite"] = Field("sqlite", description="Backend of the log.")
    codec: Literal["none", "lz4", "zstd"] = Field("none", description="Compression of records.")
    retention_s: float = Field(
        7 * 86400, gt=0, description="Age in seconds beyond which resolved trajectories are deleted."
    )
    max_record_bytes: int = Field(
        8 << 20, ge=1 << 16, le=512 << 20, description="Largest record the log takes, in bytes."
    )


class StoreConfig(Section):
    """Where checkpoints and weights are kept."""

    kind: Literal["local"] = Field("local", description="Backend of the store.")
    root: str | None = Field(None, description="Folder of the local store; by default `store` beside the runs.")


class TrainingConfig(Section):
    """The trainer."""

    algorithm: AlgorithmConfig = Field(default_factory=AppoConfig, description="What the learner optimises.")
    batch_size: int = Field(4096, ge=1, le=1 << 24, description="Trajectories per step.")
    batch_size_min: int | None = Field(
        None, ge=1, description="Lower bound of the dynamic batch size (default: batch_size)."
    )
    batch_size_max: int | None = Field(
        None, ge=1, description="Upper bound of the dynamic batch size (default: batch_size)."
    )
    age_target_s: float = Field(5.0, gt=0, description="Trajectory age in seconds above which the dynamic batch grows.")
    max_steps: int = Field(10000, ge=1, description="Steps to train, one batch each.")
    max_staleness: int = Field(
        4, ge=0, le=1_000_000, description="Versions that a trajectory may lag behind; 0 is synchronous."
    )
    sync_interval: float = Field(300.0, gt=0, description="Most seconds between published policy versions.")
    sync_cost_share: float = Field(
        0.05, gt=0, le=1, description="Share of time that publishing may take before it is done less often."
    )
    buffer_capacity: int = Field(
        1_000_000, ge=1, description="Trajectories that may wait for training; the oldest are evicted."
    )
    buffer_bytes: int = Field(
        4 << 30, ge=1 << 20, description="Bytes that may wait for training; the oldest are evicted."
    )
    gradient_clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    device: str = Field("cpu", pattern=DEVICE, description="Device of the learner.")
    torch_threads: int = Field(
        1, ge=1, le=256, description="Threads of the learner; fixed so that steps can be repeated exactly."
    )
    reward_fn: str | None = Field(None, description="Reward by built-in name or `package.module:function` (language).")

    @model_validator(mode="after")
    def _batch_bounds_agree(self) -> Self:
        low, high = self.batch_bounds
        if not low <= self.batch_size <= high:
            raise ValueError(f"batch_size {self.batch_size} is outside batch_size_min {low} .. batch_size_max {high}")
        if self.buffer_capacity < high:
            raise ValueError(
                f"buffer_capacity {self.buffer_capacity} is below the largest batch of {high} trajectories"
            )
        return self

    @property
    def batch_bounds(self) -> tuple[int, int]:
        """Smallest and largest batch, in trajectories."""
        return self.batch_size_min or self.batch_size, self.batch_size_max or self.batch_size


class StrategyConfig(Section):
    """How the trainer is spread and saved."""

    num_workers: int = Field(
        1, ge=1, le=1024, description="Trainer processes that share each step (language; control trains in one)."
    )
    sharding: Literal["none", "full"] = Field(
        "none",
        description="full: parameters, gradients and AdamW's state are cut among the trainer processes (FSDP).",
    )
    checkpoint_freq: int = Field(1000, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(5, ge=1, le=10_000, description="Newest checkpoints kept.")

    @model_validator(mode="after")
    def _there_is_who_shares(self) -> Self:
        if self.sharding == "full" and self.num_workers == 1:
            raise ValueError("sharding: got 'full' with num_workers 1; nobody is there to share with")
        return self


class EvaluationConfig(Section):
    """Evaluation and the promotion gate."""

    episodes: int = Field(100, ge=1, le=100_000, description="Evaluation episodes.")
    seed: int = Field(10_000, ge=0, description="Seed of the first episode; each next one adds one.")
    max_episode_steps: int = Field(100_000, ge=1, description="Steps after which an endless episode is cut.")
    min_return: float | None = Field(
        None, ge=-1e12, le=1e12, description="Mean return (language: mean score) below which the gate rejects."
    )
    metric: Literal["accuracy", "exact_match", "bleu", "chrf", "reward"] = Field(
        "accuracy", description="What scores a completion (language)."
    )
    answer_column: str = Field("answer", min_length=1, description="Column of the reference answer (language).")
    samples: int = Field(
        1, ge=1, le=1024, description="Sampled completions per prompt for pass@k, beside the greedy one (language)."
    )
    tolerance: float = Field(0.0, ge=0, description="How far below the champion's mean return a challenger may lie.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Level of the bootstrap confidence intervals.")
    require_promotion: bool = Field(False, description="A rejected challenger fails the run.")


class RegistryConfig(Section):
    """MLflow: runs and model versions."""

    tracking_uri: str | None = Field(
        None, description="MLflow tracking address; by default a database beside the runs."
    )
    experiment: str = Field("offbeat", min_length=1, description="MLflow experiment.")
    model_name: str | None = Field(
        None, min_length=1, description="Registered model; by default the run configuration's name."
    )


class ObservationConfig(Section):
    """What is seen from outside."""

    host: str = Field("127.0.0.1", description="Address the HTTP endpoints and the policy service bind to.")
    trainer_port: int = Field(0, ge=0, le=65535, description="Trainer's HTTP port; 0 takes a free one.")
    generator_port: int = Field(
        0, ge=0, le=65535, description="Generator's HTTP port, plus its index; 0 takes a free one."
    )
    service_port: int = Field(0, ge=0, le=65535, description="Policy service's port; 0 takes a free one.")
    interval_s: float = Field(2.0, gt=0, le=3600, description="Seconds between progress reports and metric batches.")
    quality_interval_s: float = Field(30.0, gt=0, description="Seconds between quality checks on sampled trajectories.")
    quality_sample: int = Field(512, ge=1, le=100_000, description="Trajectories per quality check.")


class LauncherConfig(Section):
    """Where the long-running subflows run, and how they are kept alive."""

    kind: Literal["process", "deployment"] = Field(
        "process", description="process: on this machine; deployment: through a work pool."
    )
    progress_deadline_s: float = Field(
        120.0, gt=0, description="Seconds without progress after which a child is restarted."
    )
    max_restarts: int = Field(3, ge=0, le=1000, description="Restarts of one child before the run fails.")
    restart_pause_s: float = Field(
        1.0, ge=0, le=3600, description="Pause before the first restart; it doubles each time."
    )
    stop_grace_s: float = Field(10.0, gt=0, le=3600, description="Seconds a child has to stop before it is killed.")


class RunConfig(Section):
    """Everything that one YAML file and the environment may say about a run."""

    name: str = Field("offbeat", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="Name of the run configuration.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of everything random.")
    workload: WorkloadConfig = Field(default_factory=ControlConfig, description="What is learned.")
    generator: GeneratorConfig = Field(default_factory=GeneratorConfig, description="The generators.")
    log: LogConfig = Field(default_factory=LogConfig, description="The trajectory log.")
    store: StoreConfig = Field(default_factory=StoreConfig, description="Checkpoints and weights.")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="The trainer.")
    strategy: StrategyConfig = Field(default_factory=StrategyConfig, description="How the trainer is spread and saved.")
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="Evaluation and gate.")
    registry: RegistryConfig = Field(default_factory=RegistryConfig, description="MLflow.")
    observation: ObservationConfig = Field(default_factory=ObservationConfig, description="Endpoints and reports.")
    launcher: LauncherConfig = Field(default_factory=LauncherConfig, description="Children and supervision.")

    @model_validator(mode="before")
    @classmethod
    def _language_learns_by_grpo(cls, data: Any) -> Any:
        """Each kind of work has its own algorithm by default."""
        if not isinstance(data, dict) or _kind(data.get("workload")) != "language":
            return data
        training = data.get("training", {})
        algorithm = training.get("algorithm", {}) if isinstance(training, dict) else None
        if not isinstance(algorithm, dict) or "kind" in algorithm:
            return data
        return data | {"training": training | {"algorithm": algorithm | {"kind": "grpo"}}}

    @model_validator(mode="after")
    def _kinds_agree(self) -> Self:
        kinds = (self.workload.kind, self.training.algorithm.kind)
        if kinds not in (("control", "appo"), ("language", "grpo")):
            expected = {"control": "appo", "language": "grpo"}[kinds[0]]
            raise ValueError(f"training.algorithm.kind: got {kinds[1]!r}; work of kind {kinds[0]} needs {expected!r}")
        if self.workload.kind == "control" and self.strategy.num_workers > 1:
            raise ValueError(f"strategy.num_workers: got {self.strategy.num_workers}; work of kind control trains in 1")
        if self.workload.kind == "language":
            advantages = getattr(self.training.algorithm, "advantages", "")
            if self.workload.group_size == 1 and advantages != "reinforce++":
                raise ValueError(
                    f"workload.group_size: got 1; {advantages} advantages compare within a group, so expected at least"
                    " 2 (or training.algorithm.advantages: reinforce++)"
                )
            for size in (self.training.batch_size, *self.training.batch_bounds):
                if size % self.workload.group_size:
                    raise ValueError(
                        f"training.batch_size: got {size}; expected a multiple of workload.group_size"
                        f" {self.workload.group_size}, so that no group is cut"
                    )
        return self

    @property
    def group_size(self) -> int:
        """Trajectories that belong together: they are planned, dropped and cut as one."""
        return self.workload.group_size if isinstance(self.workload, LanguageConfig) else 1

    @property
    def model_name(self) -> str:
        """Name of the registered model."""
        return self.registry.model_name or self.name


def control_sections(config: RunConfig) -> tuple[ControlConfig, AppoConfig]:
    """Workload and algorithm of a run whose work is of kind control; raises ConfigError for another kind."""
    workload, algorithm = config.workload, config.training.algorithm
    if isinstance(workload, ControlConfig) and isinstance(algorithm, AppoConfig):
        return workload, algorithm
    raise ConfigError(f"work of kind {workload.kind!r}: expected 'control'")


def language_sections(config: RunConfig) -> tuple[LanguageConfig, GrpoConfig]:
    """Workload and algorithm of a run whose work is of kind language; raises ConfigError for another kind."""
    workload, algorithm = config.workload, config.training.algorithm
    if isinstance(workload, LanguageConfig) and isinstance(algorithm, GrpoConfig):
        return workload, algorithm
    raise ConfigError(f"work of kind {workload.kind!r}: expected 'language'")

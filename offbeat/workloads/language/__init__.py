"""Language: a causal language model, post-trained with rewards on what it writes itself.

rows ──> prompts ──> engine ──> scoring (rewards) ──> columns ──> batches ──> learner (TRL) ──> policy ──> evaluation
base_model (made, opened or fetched; warm_up)             rollout: keeps groups whole
"""

import os
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from offbeat.algorithms.determinism import fixed_threads
from offbeat.config import RunConfig, language_sections
from offbeat.config.language import RewardConfig
from offbeat.errors import CheckpointError, ConfigError, EvaluationError, NotReady
from offbeat.rewards import RewardCombiner, RewardProcess
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.base import Learner, Policy, Rollout, Scores
from offbeat.workloads.language.columns import language_schema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from offbeat.workloads.language.learner import LanguageLearner
    from offbeat.workloads.language.policy import LanguagePolicy
    from offbeat.workloads.language.prompts import Prompt, Split
    from offbeat.workloads.language.team import Team


# What the extra `language` brings; looked for before anything is imported.
PACKAGES = ("transformers", "trl", "peft", "accelerate", "datasets", "sacrebleu")


class LanguageWorkload:
    """The work of a LanguageConfig, from the base folder that `prepare` made."""

    def __init__(self, config: RunConfig, *, base: Path) -> None:
        _hush()
        self._run = config
        self._config, self._algorithm = language_sections(config)
        self._base = base

    @property
    def schema(self) -> pa.Schema:
        """Columns of its trajectories (see columns.py)."""
        return language_schema()

    def num_samples(self, batch: TrajectoryBatch) -> int:
        """Written tokens."""
        return len(batch.ragged("completion_ids")[0])

    def check(self) -> str:
        """Packages, data and rewards are there, and fit the model; raises ConfigError or NotReady."""
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            raise NotReady(f"work of kind language needs {', '.join(missing)}; install the extra: offbeat[language]")
        from offbeat.workloads.language.fit import check_fit
        from offbeat.workloads.language.sources import check_source

        model = check_source(self._config.model)
        self._check_columns()
        check_fit(self._config, self._split)
        rewards = self._rewards("check")
        try:
            rewards.start()
        finally:
            rewards.close()
        found = f"{len(self._split.train)} training and {len(self._split.validation)} validation prompts"
        return f"{found}, {len(self._functions)} rewards, {model}"

    def prepare(self) -> dict[str, float]:
        """Make version 0 unless it is there; returns its score on the validation prompts, and the warm-up's measures.

        Raises ConfigError for data or a model that cannot be had.
        """
        from offbeat.workloads.language.base_model import prepare_base

        with fixed_threads(self._run.training.torch_threads):
            measures = prepare_base(self._run, self._config, self._base)
        evaluation = self._run.evaluation
        scores = self.evaluate(
            self._open_policy(self._run.training.device), num_episodes=evaluation.episodes, seed=evaluation.seed
        )
        return {f"{scores.name}_mean": float(scores.values.mean()), **scores.extras, **measures}

    def make_policy(self) -> Policy:
        """The base model on the generator's device; acts as version n after `load_weights`."""
        return self._open_policy(self._run.generator.device)

    def make_rollout(self, *, seed: int) -> Rollout:
        """A rollout whose randomness comes from `seed` alone."""
        import torch

        from offbeat.workloads.language.engine import TransformersEngine
        from offbeat.workloads.language.rollout import LanguageRollout
        from offbeat.workloads.language.scoring import Scorer

        config = self._config
        engine = TransformersEngine(
            config.sampling, num_sequences=config.num_sequences, generator=torch.Generator().manual_seed(seed)
        )
        return LanguageRollout(
            config,
            self._prompts(self._split.train),
            self.schema,
            engine=engine,
            scorer=Scorer(self._rewards(f"generator-{seed}"), self._combine(), self._tokenizer),
            seed=seed,
            ahead=self._groups_ahead,
        )

    @property
    def _groups_ahead(self) -> int:
        """Groups that may wait for rewards beyond a collect: no more than are still fresh when they are trained.

        One version is left for weights on their way to the generator. None in a synchronous run, which has nothing to
        do while it waits.
        """
        run, config = self._run, self._config
        batches = max(0, run.training.max_staleness - 1)
        fresh = batches * run.training.batch_bounds[0] // run.generator.num_generators
        return max(0, min(fresh, config.rewards.max_waiting) // config.group_size - config.num_groups)

    def make_learner(self) -> Learner:
        """A learner at step 0: the base model, held by `strategy.num_workers` processes."""
        from offbeat.workloads.language.team_start import open_team

        team = open_team(self._run, self._base, meanwhile=_learner_class)
        policy = self._open_policy(self._run.training.device)
        return _learner_class()(self._run, self._config, self._algorithm, policy, team)

    def follow(self) -> None:
        """Be one of the trainer processes that a launcher such as torchrun started, not the first."""
        from offbeat.workloads.language.follower_process import ignore_signals
        from offbeat.workloads.language.team_start import join_launched

        team = join_launched(self._run)
        ignore_signals()
        self.follow_in(team)

    def follow_in(self, team: "Team") -> None:
        """Do this process's share of every step until the team's first process ends."""
        from offbeat.workloads.language.follower import follow

        try:
            follow(self._run, self._open_policy(self._run.training.device), team)
        finally:
            team.close()

    def load_policy(self, folder: Path) -> Policy:
        """The policy of a checkpoint's `policy/` folder; raises CheckpointError."""
        from offbeat.workloads.language.policy import open_policy

        return open_policy(folder, device=self._run.training.device)

    def evaluate(self, policy: Policy, *, num_episodes: int, seed: int) -> Scores:
        """The configured metric on validation prompts drawn by `seed`; raises EvaluationError."""
        from offbeat.workloads.language.evaluation import choose_prompts, evaluate_prompts

        prompts = choose_prompts(self._prompts(self._split.validation), num_prompts=num_episodes, seed=seed)
        rewards = self._rewards("evaluation")
        try:
            with fixed_threads(self._run.training.torch_threads):
                return evaluate_prompts(
                    self._run,
                    self._config,
                    cast("LanguagePolicy", policy),
                    prompts,
                    rewards=rewards,
                    combine=self._combine(),
                    seed=seed,
                )
        except RuntimeError as error:  # NaN among the weights, or no memory.
            raise EvaluationError(f"the model cannot write: {error}") from error
        finally:
            rewards.close()

    def _check_columns(self) -> None:
        """The columns that warm-up and evaluation read are there; raises ConfigError."""
        warm_up, evaluation = self._config.model.warm_up, self._run.evaluation
        solved = warm_up.completion_column
        if warm_up.steps and not any(isinstance(row.get(solved), str) for _, row in self._split.train):
            raise ConfigError(f"workload.model.warm_up.completion_column: no training row has a text in {solved!r}")
        lacking = sum(row.get(evaluation.answer_column) is None for _, row in self._split.validation)
        if evaluation.metric != "reward" and lacking:
            raise ConfigError(
                f"evaluation.metric {evaluation.metric!r} compares with evaluation.answer_column"
                f" {evaluation.answer_column!r}, which {lacking} of {len(self._split.validation)} validation rows lack"
            )

    @cached_property
    def _split(self) -> "Split":
        from offbeat.workloads.language.prompts import read_split

        return read_split(self._config.data)

    @cached_property
    def _tokenizer(self) -> "PreTrainedTokenizerBase":
        from offbeat.workloads.language.base_model import open_tokenizer

        if not self._base.exists():
            raise CheckpointError(f"{self._base} is not there; the provision stage of `offbeat run` makes it")
        return open_tokenizer(self._base)

    def _open_policy(self, device: str) -> "LanguagePolicy":
        from offbeat.workloads.language.base_model import open_model
        from offbeat.workloads.language.policy import LanguagePolicy

        tokenizer = self._tokenizer
        model = open_model(self._base, self._config.model, device=device, seed=self._run.seed)
        return LanguagePolicy(model, tokenizer, settings=self._settings)

    @property
    def _settings(self) -> dict[str, object]:
        """How prompts become text and text is sampled, for those who open the policy without the run."""
        data = self._config.data
        return {
            "system_prompt": data.system_prompt,
            "chat_template": data.chat_template,
            "chat_template_kwargs": data.chat_template_kwargs,
            "max_prompt_tokens": data.max_prompt_tokens,
            "sampling": self._config.sampling.model_dump(mode="json"),
        }

    def _prompts(self, rows: "Sequence[tuple[int, dict[str, object]]]") -> "list[Prompt]":
        from transformers import AutoConfig

        from offbeat.workloads.language.fit import fitting_prompts

        tokenizer = self._tokenizer  # Says what is wrong where the base folder is not there yet.
        model = AutoConfig.from_pretrained(self._base, local_files_only=True)
        return fitting_prompts(rows, self._config, tokenizer, model)

    @property
    def _functions(self) -> tuple[RewardConfig, ...]:
        """The configured rewards, or the one that `training.reward_fn` names."""
        if self._config.rewards.functions:
            return self._config.rewards.functions
        if self._run.training.reward_fn is None:
            raise ConfigError("no reward is configured; name one in workload.rewards.functions or training.reward_fn")
        return (RewardConfig(name=self._run.training.reward_fn),)

    def _rewards(self, who: str) -> RewardProcess:
        functions = [(function.name, function.arguments) for function in self._functions]
        output = self._base.parent / "output" / f"rewards-{who}.log"
        return RewardProcess(functions, timeout_s=self._config.rewards.timeout_s, output=output)

    def _combine(self) -> RewardCombiner:
        rewards = self._config.rewards
        weights = [function.weight for function in self._functions]
        return RewardCombiner(weights, clip=rewards.clip, smoothing=rewards.smoothing)


def _learner_class() -> "type[LanguageLearner]":
    # TRL and what it imports: many seconds.
    from offbeat.workloads.language.learner import LanguageLearner

    return LanguageLearner


def _hush() -> None:
    """No progress bars and no advice on a log; set in the environment, which transformers' and tqdm's imports read."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")

"""The learner of language workloads: group-relative policy optimisation on completions of known behaviour.

    batch ──> advantages of groups ──> leave out equal groups ──> shares, one for each process of the team
          ──> each process's updates (updates.py) ──> summed metrics

The behaviour's log-probs are recorded ones. `correction` says what becomes of them: the clipped ratio's denominator
(clip), an importance weight beside a ratio against the policy at the step's start (truncated, decoupled), or nothing.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from offbeat.algorithms.group_advantages import equal_groups, group_advantages
from offbeat.algorithms.schedules import learning_rate
from offbeat.config import RunConfig
from offbeat.config.language import GrpoConfig, LanguageConfig
from offbeat.errors import CheckpointError, WorkloadError
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.adam_state import check_adam_tensors
from offbeat.workloads.base import Weights
from offbeat.workloads.language.batches import Completions, completions_of
from offbeat.workloads.language.checks import LogprobCheck
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.shares import deal
from offbeat.workloads.language.team import Order, Team
from offbeat.workloads.language.updates import Update, Updater, summed
from offbeat.workloads.language.whole_policy import WholePolicy
from offbeat.workloads.tensor_files import write_tensors

FORMAT = "offbeat-language-learner-1"
PARAMETER = "parameter/"


class LanguageLearner:
    """A language model that learns; see `offbeat.workloads.base.Learner`. The first process of its team."""

    def __init__(
        self,
        config: RunConfig,
        workload: LanguageConfig,
        algorithm: GrpoConfig,
        policy: LanguagePolicy,
        team: Team | None = None,
    ) -> None:
        self._training, self._workload, self._algorithm = config.training, workload, algorithm
        self._policy, self._team = policy, team or Team()
        self._updater = Updater(policy, config, workload, algorithm, self._team)
        self._whole = WholePolicy(policy, self._updater, self._team)
        self._check = LogprobCheck(algorithm, workload.sampling)
        self._steps = 0

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._steps

    def step(self, batch: TrajectoryBatch, *, seed: int, version: int = 0) -> dict[str, float]:
        """One step on whole groups; an optimiser update for each minibatch of each epoch.

        Raises LogprobMismatch when what is recorded of `version` is not what it samples, WorkloadError when a process
        of the team is gone.
        """
        checked = self._check(self._whole, batch, step=self._steps, version=version)
        rate = self._learning_rate()
        rewards = torch.from_numpy(batch.numpy("reward").copy()).view(-1, self._workload.group_size)
        advantages = group_advantages(rewards, self._algorithm.advantages).flatten()
        equal = equal_groups(rewards)
        rows = completions_of(batch, advantages)
        kept = self._kept_rows(equal)
        updates = self._learn(rows.select(kept), seed, rate) if kept else []
        self._steps += 1
        return {
            "training_loss": 0.0,
            **_means(updates),
            **checked,
            **_reward_metrics(batch, rewards),
            "equal_groups": float(equal.sum()),
            "samples": float(rows.num_tokens),
            "learning_rate": rate,
            "micro_batch_tokens": float(self._updater.micro_batch_tokens),
        }

    def weights(self) -> Weights:
        """The trained parameters, as CPU clones."""
        return self._whole.weights()

    def digest(self) -> str:
        """BLAKE2b over every trained parameter, optimiser value and the step, in a fixed order."""
        if not self._updater.sharded:
            return self._updater.digest(self._steps)
        return blake2b("".join([str(self._steps), *self._digests()]).encode(), digest_size=32).hexdigest()

    def save(self, folder: Path) -> None:
        """Write `policy/` (a transformers folder), `optimizer.safetensors` and `learner.json`.

        Raises WorkloadError when the team's processes no longer hold the same parameters.
        """
        self._check_team()
        if self._updater.sharded:
            self._team.tell(Order.STATE)
        parameters, moments = self._updater.state()
        folder.mkdir(parents=True, exist_ok=True)
        self._policy.save(folder / "policy", parameters if self._updater.sharded else None)
        exact = {f"{PARAMETER}{name}": tensor for name, tensor in parameters.items()}
        write_tensors(
            {name: tensor.contiguous() for name, tensor in (moments | exact).items()}, folder / "optimizer.safetensors"
        )
        document = {
            "format": FORMAT,
            "steps": self._steps,
            "parameters": list(self._updater.names),
            **self._updater.settings(),
        }
        (folder / "learner.json").write_text(json.dumps(document, indent=2), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote; raises CheckpointError when it does not fit."""
        updater = self._updater
        try:
            document = json.loads((folder / "learner.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / "optimizer.safetensors")
            if document["format"] != FORMAT or document["parameters"] != list(updater.names):
                raise CheckpointError(f"{folder / 'learner.json'}: not the state of a learner with these parameters")
            steps = int(document["steps"])
            settings = {"micro_batch_tokens": int(document["micro_batch_tokens"]), "scaler": document["scaler"]}
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"no learner can be opened in {folder}: {type(error).__name__}: {error}") from error
        parameters, moments = parted(tensors)
        check_adam_tensors(moments, updater.names, updater.parameters, folder)
        try:
            updater.restore(parameters, moments, settings)
        except WorkloadError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        self._team.tell(Order.RESTORE)
        self._team.spread(tensors, settings)
        self._steps = steps

    def close(self) -> None:
        """End the other processes of the team."""
        self._team.close()

    def _learn(self, rows: Completions, seed: int, rate: float) -> list[dict[str, float]]:
        shares = deal(rows, self._algorithm, seed=seed, learning_rate=rate, num_shares=self._team.size)
        self._team.tell(Order.LEARN)
        mine: list[Update] = self._updater.learn(self._team.scatter(shares))
        return [summed(parts) for parts in zip(*self._team.gather(mine), strict=True)]

    def _digests(self) -> list[str]:
        self._team.tell(Order.DIGEST)
        return self._team.gather(self._updater.digest(0))

    def _check_team(self) -> None:
        if self._team.size == 1 or self._updater.sharded:
            return  # Nobody to differ from, or no two hold the same piece.
        digests = self._digests()
        differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if differing:
            raise WorkloadError(f"trainer processes {differing} hold other parameters than process 0; nothing is saved")

    def _learning_rate(self) -> float:
        algorithm, last = self._algorithm, self._training.max_steps
        rate = learning_rate(algorithm.lr_schedule, algorithm.learning_rate, step=self._steps, max_steps=last)
        return rate * min(1.0, (self._steps + 1) / (algorithm.warmup_steps + 1))

    def _kept_rows(self, equal: Tensor) -> list[int]:
        # Against the whole batch's mean a group of equal rewards says something, too.
        if not self._algorithm.skip_equal_groups or self._algorithm.advantages == "reinforce++":
            return list(range(len(equal) * self._workload.group_size))
        groups = torch.nonzero(~equal).flatten().tolist()
        size = self._workload.group_size
        return [row for group in groups for row in range(group * size, (group + 1) * size)]


def parted(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and the optimiser's moments of what `save` writes into one file."""
    parameters = {name.removeprefix(PARAMETER): part for name, part in tensors.items() if name.startswith(PARAMETER)}
    return parameters, {name: part for name, part in tensors.items() if not name.startswith(PARAMETER)}


def _means(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for update in updates for name in update)
    known = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: sum(values) / len(values) for name, values in known.items()}


def _reward_metrics(batch: TrajectoryBatch, rewards: Tensor) -> dict[str, float]:
    known = rewards[~torch.isnan(rewards)]
    lengths = batch.ragged("completion_ids")[1]
    metrics = {
        "completion_length_mean": float(lengths[-1]) / max(1, len(batch)),
        "cut_share": float(batch.numpy("finish").mean()),
        "unscored": float(rewards.numel() - known.numel()),
    }
    if known.numel():
        metrics |= {"reward_mean": float(known.mean()), "reward_std": float(known.std(correction=0))}
        # The learning curve of every kind of work has one name.
        metrics["episode_return_mean"] = metrics["reward_mean"]
    return metrics

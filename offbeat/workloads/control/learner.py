"""The learner of control workloads: asynchronous PPO on V-trace or GAE estimates.

    batch ──> unrolls ──> normalise ──> for each epoch, for each minibatch of trajectories:
                                          one pass: log-probs, entropies, values
                                          values + log-ratios ──> V-trace targets and advantages (no gradient)
                                          loss ──> clipped gradient ──> Adam

Estimates are made anew in every minibatch, from the values of the very pass that is then differentiated: they are
never older than the parameters, and no extra pass over the batch is paid for. A step is a function of the learner's
state, the batch and the seed, bit for bit, on one machine with one thread count.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from offbeat.algorithms.advantages import normalize
from offbeat.algorithms.appo import AppoLoss, appo_loss
from offbeat.algorithms.returns import Estimates, gae, vtrace
from offbeat.algorithms.schedules import learning_rate
from offbeat.config import RunConfig, control_sections
from offbeat.errors import CheckpointError
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.adam_state import adam_tensors, check_adam_tensors, digest_of, load_adam_tensors
from offbeat.workloads.base import Weights
from offbeat.workloads.control.columns import Spaces
from offbeat.workloads.control.policy import load_actor_critic, make_actor_critic, save_actor_critic
from offbeat.workloads.control.scaling import RunningNormalizer, discounted_sums
from offbeat.workloads.control.unrolls import Unrolls, unrolls_of
from offbeat.workloads.tensor_files import write_tensors

FORMAT = "offbeat-control-learner-1"
MAX_REWARD = 10.0  # Deviations; scaled rewards are clipped to this.


class ControlLearner:
    """Actor-critic parameters that learn; see `offbeat.workloads.base.Learner`.

    The process that owns it calls `offbeat.algorithms.determinism.make_deterministic` first.
    """

    def __init__(self, config: RunConfig, spaces: Spaces) -> None:
        self._workload, self._algorithm = control_sections(config)
        self._training = config.training
        self._device = torch.device(config.training.device)
        policy = make_actor_critic(
            self._workload.policy, spaces, normalize=self._workload.normalize_observations, seed=config.seed
        )
        self._policy = policy.to(self._device)
        self._rewards = RunningNormalizer(()).to(self._device) if self._workload.normalize_rewards else None
        self._names, self._parameters = zip(*self._policy.named_parameters(), strict=True)
        self._optimizer = torch.optim.Adam(
            self._parameters, lr=self._algorithm.learning_rate, eps=self._algorithm.adam_epsilon, fused=True
        )
        self._steps = 0

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._steps

    def step(self, batch: TrajectoryBatch, *, seed: int, version: int = 0) -> dict[str, float]:
        """One step on a batch; raises ContractViolation for unrolls that contradict themselves."""
        unrolls = self._with_scaled_rewards(unrolls_of(batch, self._device))
        rate = self._set_learning_rate()
        updates = [self._update(part) for part in self._minibatches(unrolls, seed)]
        # Only now, so that the batch is scored through the same scale that its behaviour policy saw through.
        self._policy.update_normalizer(unrolls.observations[:, :-1].flatten(0, 1))
        self._steps += 1
        means = {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]}
        return {**means, **_episode_metrics(batch), "samples": float(unrolls.weights.sum()), "learning_rate": rate}

    def weights(self) -> Weights:
        """Parameters and normaliser of the policy, as CPU clones."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self._policy.state_dict().items()}

    def digest(self) -> str:
        """BLAKE2b over every parameter, buffer, optimiser value and the step, in a fixed order."""
        return digest_of(self._steps, {**self._policy.state_dict(), **self._learner_tensors()})

    def save(self, folder: Path) -> None:
        """Write `policy/`, `optimizer.safetensors` and `learner.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        save_actor_critic(self._policy, folder / "policy")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._learner_tensors().items()}
        write_tensors(tensors, folder / "optimizer.safetensors")
        document = {"format": FORMAT, "steps": self._steps, "parameters": list(self._names)}
        (folder / "learner.json").write_text(json.dumps(document, indent=2), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote, or nothing; raises CheckpointError when it does not fit."""
        saved = load_actor_critic(folder / "policy")
        own = self._policy
        if (saved.spaces, saved.config, saved.normalize) != (own.spaces, own.config, own.normalize):
            raise CheckpointError(f"{folder}: the policy saved there has another network or other spaces than this run")
        try:
            document = json.loads((folder / "learner.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / "optimizer.safetensors", device=str(self._device))
            if document["format"] != FORMAT or document["parameters"] != list(self._names):
                raise CheckpointError(f"{folder / 'learner.json'}: not the state of a learner with these parameters")
            steps = int(document["steps"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"no learner can be opened in {folder}: {type(error).__name__}: {error}") from error
        self._take_over(tensors, folder)
        own.load_weights({name: tensor.to(self._device) for name, tensor in saved.state_dict().items()})
        self._steps = steps

    def close(self) -> None:
        """Nothing to give back: this learner is one process."""

    def _with_scaled_rewards(self, unrolls: Unrolls) -> Unrolls:
        if self._rewards is None:
            return unrolls
        sums = discounted_sums(unrolls.rewards.t(), unrolls.cuts.t(), self._algorithm.discount)
        self._rewards.update(sums[unrolls.weights.t() > 0])
        scaled = unrolls.rewards / self._rewards.deviation()
        return replace(unrolls, rewards=scaled.clamp(-MAX_REWARD, MAX_REWARD))

    def _set_learning_rate(self) -> float:
        algorithm, last = self._algorithm, self._training.max_steps
        rate = learning_rate(algorithm.lr_schedule, algorithm.learning_rate, step=self._steps, max_steps=last)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _minibatches(self, unrolls: Unrolls, seed: int) -> Iterator[Unrolls]:
        count = len(unrolls.rewards)
        pieces = min(self._algorithm.minibatches, count)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self._algorithm.epochs):
            if pieces == 1:  # The order of one whole batch changes nothing that is worth a copy of it.
                yield unrolls
                continue
            order = torch.randperm(count, generator=generator).to(self._device)
            yield from (unrolls.select(rows) for rows in torch.tensor_split(order, pieces))

    def _update(self, part: Unrolls) -> dict[str, float]:
        logprobs, entropies, values = self._policy.evaluate_unrolls(part.observations, part.actions)
        log_ratios = logprobs - part.behaviour_logprobs
        estimates = self._estimates(part, values.detach(), log_ratios.detach())
        loss = self._loss(part, log_ratios, entropies, values[:, :-1], estimates)
        self._optimizer.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._training.gradient_clip)
        # A loss beyond float32 must not reach the parameters; the update is left out, and the metric says so.
        finite = bool(torch.isfinite(norm))
        if finite:
            self._optimizer.step()
        return _metrics(loss, norm, _explained(values[:, :-1].detach(), estimates.targets, part.weights), finite)

    @torch.no_grad()
    def _estimates(self, part: Unrolls, values: Tensor, log_ratios: Tensor) -> Estimates:
        algorithm = self._algorithm
        discounts = torch.full_like(part.rewards, algorithm.discount).masked_fill_(part.terminated, 0.0)
        next_values = self._next_values(part, values)
        given = {"rewards": part.rewards, "discounts": discounts, "cuts": part.cuts, "next_values": next_values}
        time_major = {name: tensor.t().contiguous() for name, tensor in given.items()}
        if algorithm.correction == "gae":
            made = gae(**time_major, values=values[:, :-1].t(), trace_lambda=algorithm.trace_lambda)
        else:
            made = vtrace(
                **time_major,
                values=values[:, :-1].t(),
                log_ratios=log_ratios.t(),
                trace_lambda=algorithm.trace_lambda,
                rho_bar=algorithm.rho_bar,
                c_bar=algorithm.c_bar,
            )
        return Estimates(targets=made.targets.t(), advantages=made.advantages.t())

    def _next_values(self, part: Unrolls, values: Tensor) -> Tensor:
        follows = part.final_index >= 0
        if not len(part.final_observations) or not bool(follows.any()):
            return values[:, 1:]
        finals = self._policy.value(part.final_observations.index_select(0, part.final_index[follows]))
        return values[:, 1:].masked_scatter(follows, finals)

    def _loss(self, part: Unrolls, log_ratios: Tensor, entropies: Tensor, values: Tensor, made: Estimates) -> AppoLoss:
        algorithm = self._algorithm
        scaled = normalize(made.advantages, part.weights) if algorithm.normalize_advantages else made.advantages
        return appo_loss(
            log_ratios=log_ratios,
            advantages=scaled,
            values=values,
            targets=made.targets,
            entropies=entropies,
            weights=part.weights,
            clip_ratio=algorithm.clip_ratio,
            value_coef=algorithm.value_coef,
            entropy_coef=algorithm.entropy_coef,
        )

    def _learner_tensors(self) -> dict[str, Tensor]:
        tensors = adam_tensors(self._optimizer, self._names, self._parameters)
        if self._rewards is not None:
            tensors |= {f"rewards/{name}": tensor for name, tensor in self._rewards.state_dict().items()}
        return tensors

    def _take_over(self, tensors: dict[str, Tensor], folder: Path) -> None:
        expected = {} if self._rewards is None else {f"rewards/{name}": name for name in self._rewards.state_dict()}
        if missing := sorted(expected.keys() - tensors.keys()):
            raise CheckpointError(f"{folder}: optimizer.safetensors lacks {', '.join(missing)}")
        moments = {name: tensor for name, tensor in tensors.items() if name not in expected}
        check_adam_tensors(moments, self._names, self._parameters, folder)
        if self._rewards is not None:
            self._rewards.load_state_dict({name: tensors[key] for key, name in expected.items()})
        load_adam_tensors(self._optimizer, moments, self._names, self._parameters)


def _metrics(loss: AppoLoss, norm: Tensor, explained_variance: Tensor, applied: bool) -> dict[str, float]:
    parts = {
        "training_loss": loss.total.detach(),
        "policy_loss": loss.policy,
        "value_loss": loss.value,
        "entropy": loss.entropy,
        "clip_fraction": loss.clip_fraction,
        "approx_kl": loss.approx_kl,
        "grad_norm": norm,
        "explained_variance": explained_variance,
    }
    values = torch.stack(list(parts.values())).tolist()
    return {**dict(zip(parts, values, strict=True)), "skipped_updates": 0.0 if applied else 1.0}


def _explained(values: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    scale = weights / weights.sum().clamp(min=1.0)
    errors = targets - values
    error_variance = ((errors - (errors * scale).sum()).square() * scale).sum()
    variance = ((targets - (targets * scale).sum()).square() * scale).sum()
    return 1 - error_variance / variance.clamp(min=1e-12)


def _episode_metrics(batch: TrajectoryBatch) -> dict[str, float]:
    returns, lengths = batch.ragged("episode_returns")[0], batch.ragged("episode_lengths")[0]
    if not len(returns):
        return {"episodes": 0.0}
    means = {"episode_return_mean": float(returns.mean(dtype="float64")), "episode_length_mean": float(lengths.mean())}
    return {"episodes": float(len(returns)), **means}

"""The actor-critic of control workloads: acts, scores actions, and opens from a checkpoint's `policy/` folder.

    observations ──> scale ──┬──> actor trunk ──> policy head ──> logits (Discrete) or means (Box)
                             └──> critic trunk ─> value head ───> values     (one trunk for both if shared_trunk)

Discrete actions are categorical. Box actions are a diagonal Gaussian with a state-independent log deviation;
actions are neither squashed nor clipped here, the environment's side clips them.
"""

import json
import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from offbeat.config import PolicyConfig
from offbeat.errors import CheckpointError, OffbeatError, WorkloadError
from offbeat.workloads.base import Weights
from offbeat.workloads.control.columns import Discrete, Spaces, action_document, action_from_document
from offbeat.workloads.control.networks import make_linear, make_trunk
from offbeat.workloads.control.scaling import RunningNormalizer
from offbeat.workloads.tensor_files import write_tensors

FORMAT = "offbeat-actor-critic-1"
SHAPE_FILE, WEIGHTS_FILE = "policy.json", "policy.safetensors"
ROWS_AT_ONCE = 8192  # Bounds the float copies of a batch of images.
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class ActorCritic(nn.Module):
    """A policy and its value function; use `make_actor_critic` to build one.

    Observations are [N, *observation_shape] in the spaces' dtype; actions are int64 [N] (Discrete) or float32 [N, A].
    """

    def __init__(self, config: PolicyConfig, spaces: Spaces, *, normalize: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.config, self.spaces, self.normalize = config, spaces, normalize
        self.discrete = isinstance(spaces.action, Discrete)
        outputs = spaces.action.n if isinstance(spaces.action, Discrete) else spaces.action.size
        self.normalizer = RunningNormalizer(spaces.observation_shape) if normalize else None
        self.actor, size = make_trunk(config, spaces, generator)
        self.critic = None if config.shared_trunk else make_trunk(config, spaces, generator)[0]
        self.policy_head = make_linear(size, outputs, 0.01, generator)
        self.value_head = make_linear(size, 1, 1.0, generator)
        self.log_std = None if self.discrete else nn.Parameter(torch.full((outputs,), config.initial_log_std))

    def scale(self, observations: Tensor) -> Tensor:
        """Observations as the trunks take them: float32, bytes as 0 .. 1, normalised if so configured."""
        scaled = self.unit(observations)
        return scaled if self.normalizer is None else self.normalizer(scaled)

    def unit(self, observations: Tensor) -> Tensor:
        """Observations in float32, bytes as 0 .. 1; what the normaliser's moments are of."""
        return observations.float() / 255 if observations.dtype == torch.uint8 else observations

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means [N, n or A], and values [N]."""
        scaled = self.scale(observations)
        features = self.actor(scaled)
        critic_features = features if self.critic is None else self.critic(scaled)
        return self.policy_head(features), self.value_head(critic_features).squeeze(-1)

    @torch.inference_mode()
    def value(self, observations: Tensor) -> Tensor:
        """Values [N], without a gradient."""
        trunk = self.actor if self.critic is None else self.critic
        values: Tensor = self.value_head(trunk(self.scale(observations))).squeeze(-1)
        return values

    @torch.inference_mode()
    def act(self, observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sampled actions and their log-probs [N]."""
        outputs = self._policy_outputs(observations)
        if self.log_std is not None:
            actions = torch.randn(outputs.shape, generator=generator).mul_(self.log_std.exp()).add_(outputs)
            return actions, _gaussian_logprobs(outputs, self.log_std, actions)
        logprobs = outputs.log_softmax(-1)
        # Inverse transform: count the bins that lie below a uniform number; cheaper than Gumbel noise per action.
        below = logprobs.exp().cumsum(-1)[:, :-1] <= torch.rand(len(outputs), 1, generator=generator)
        actions = below.sum(-1)
        return actions, _chosen(logprobs, actions)

    @torch.inference_mode()
    def greedy(self, observations: Tensor) -> Tensor:
        """The likeliest actions."""
        outputs = self._policy_outputs(observations)
        return outputs.argmax(-1) if self.discrete else outputs

    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs of the actions, entropies, and values, each [N], with gradients."""
        outputs, values = self(observations)
        logprobs, entropies = self._score(outputs, actions)
        return logprobs, entropies, values

    def evaluate_unrolls(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs and entropies [N, T] of actions [N, T, ...], and values [N, T + 1], in one pass with gradients.

        observations: [N, T + 1, *shape]; the last of each unroll only gets a value.
        """
        shape, (rows, length) = actions.shape[:2], observations.shape[:2]
        scaled = self.scale(observations.flatten(0, 1))
        if self.critic is None:
            critic_features = self.actor(scaled)
            features = _without_last(critic_features, rows, length)
        else:
            features, critic_features = self.actor(_without_last(scaled, rows, length)), self.critic(scaled)
        logprobs, entropies = self._score(self.policy_head(features), actions.flatten(0, 1))
        values = self.value_head(critic_features).view(rows, length)
        return logprobs.view(shape), entropies.view(shape), values

    @torch.no_grad()
    def update_normalizer(self, observations: Tensor) -> None:
        """Take observations [N, *shape] into the running moments, if observations are normalised."""
        if self.normalizer is not None:
            for rows in torch.split(observations, ROWS_AT_ONCE):
                self.normalizer.update(self.unit(rows))

    @torch.no_grad()
    def load_weights(self, weights: Weights) -> None:
        """Take over published parameters; raises WorkloadError when names or shapes differ, or on NaN."""
        own = self.state_dict()
        if own.keys() != weights.keys():
            raise WorkloadError(f"weights differ in {sorted(own.keys() ^ weights.keys())}, expected {sorted(own)}")
        for name, tensor in own.items():
            got = weights[name]
            if got.shape != tensor.shape or got.dtype != tensor.dtype:
                expected = f"{tensor.dtype} {tuple(tensor.shape)}"
                raise WorkloadError(f"weights {name!r}: got {got.dtype} {tuple(got.shape)}, expected {expected}")
            if not bool(torch.isfinite(got).all()):
                raise WorkloadError(f"weights {name!r} hold NaN or infinity; they are refused")
        for name, tensor in own.items():
            tensor.copy_(weights[name])

    def _policy_outputs(self, observations: Tensor) -> Tensor:
        outputs: Tensor = self.policy_head(self.actor(self.scale(observations)))
        return outputs

    def _score(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        if self.log_std is not None:
            entropy = (self.log_std + HALF_LOG_TAU + 0.5).sum().expand(len(outputs))
            return _gaussian_logprobs(outputs, self.log_std, actions), entropy
        logprobs = outputs.log_softmax(-1)
        return _chosen(logprobs, actions), -(logprobs.exp() * logprobs).sum(-1)


def make_actor_critic(config: PolicyConfig, spaces: Spaces, *, normalize: bool, seed: int) -> ActorCritic:
    """A fresh actor-critic whose parameters come from `seed` alone; torch's global generator is left alone."""
    return ActorCritic(config, spaces, normalize=normalize, generator=torch.Generator().manual_seed(seed))


def save_actor_critic(policy: ActorCritic, folder: Path) -> None:
    """Write `policy.safetensors` and `policy.json`, which `load_actor_critic` opens without the run's configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items()}
    write_tensors(weights, folder / WEIGHTS_FILE)
    document = {
        "format": FORMAT,
        "observation_shape": policy.spaces.observation_shape,
        "observation_dtype": policy.spaces.observation_dtype,
        "action": action_document(policy.spaces.action),
        "normalize": policy.normalize,
        "policy": policy.config.model_dump(mode="json"),
    }
    (folder / SHAPE_FILE).write_text(json.dumps(document, indent=2, allow_nan=False), encoding="utf-8")


def load_actor_critic(folder: Path) -> ActorCritic:
    """The policy that `save_actor_critic` wrote; raises CheckpointError on anything missing, broken or unknown."""
    try:
        document = json.loads((folder / SHAPE_FILE).read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise CheckpointError(f"{folder / SHAPE_FILE}: got format {document['format']!r}, expected {FORMAT}")
        spaces = Spaces(
            observation_shape=tuple(map(int, document["observation_shape"])),
            observation_dtype=document["observation_dtype"],
            action=action_from_document(document["action"]),
        )
        config = PolicyConfig.model_validate(document["policy"])
        policy = make_actor_critic(config, spaces, normalize=bool(document["normalize"]), seed=0)
        policy.load_weights(load_file(folder / WEIGHTS_FILE))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, OffbeatError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"no policy can be opened in {folder}: {type(error).__name__}: {error}") from error
    return policy


def _gaussian_logprobs(means: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    distances = (actions - means) * (-log_std).exp()
    return -(0.5 * distances.square() + log_std + HALF_LOG_TAU).sum(-1)


def _chosen(logprobs: Tensor, actions: Tensor) -> Tensor:
    return logprobs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def _without_last(flat: Tensor, rows: int, length: int) -> Tensor:
    return flat.view(rows, length, *flat.shape[1:])[:, :-1].flatten(0, 1)

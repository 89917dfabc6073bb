"""The kind of work `control`, and the algorithm that learns it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from offbeat.config.section import MODULE_FUNCTION, Section


class PolicyConfig(Section):
    """Shape of the actor-critic network."""

    hidden_sizes: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = Field(
        (64, 64), description="Units of each hidden layer."
    )
    activation: Literal["tanh", "relu", "elu"] = Field("tanh", description="Non-linearity between layers.")
    conv_channels: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        (16, 32), description="Channels of each convolution, used when observations are images."
    )
    shared_trunk: bool = Field(False, description="One trunk for actor and critic instead of one each.")
    initial_log_std: float = Field(
        0.0, ge=-10, le=2, description="Start of the log standard deviation for continuous actions."
    )


class ControlConfig(Section):
    """A Gymnasium environment, played by a feed-forward actor-critic."""

    kind: Literal["control"] = Field("control", description="Kind of work.")
    env_id: str = Field("CartPole-v1", min_length=1, description="Gymnasium environment id.")
    env_fn: str | None = Field(
        None,
        pattern=MODULE_FUNCTION,
        description="`package.module:function` that makes the environment, instead of env_id.",
    )
    env_kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for the environment.")
    num_envs: int = Field(64, ge=1, le=65536, description="Environments that each generator steps at once.")
    unroll_length: int = Field(32, ge=1, le=65536, description="Steps per trajectory.")
    frame_skip: int = Field(1, ge=1, le=64, description="Times each action is repeated; rewards are summed.")
    normalize_observations: bool = Field(False, description="Scale observations by their running mean and deviation.")
    normalize_rewards: bool = Field(False, description="Scale rewards by the running deviation of discounted returns.")
    policy: PolicyConfig = Field(default_factory=PolicyConfig, description="Shape of the network.")


class AppoConfig(Section):
    """Asynchronous PPO: clipped policy gradient on V-trace (off-policy) or GAE (on-policy) advantages."""

    kind: Literal["appo"] = Field("appo", description="Algorithm of the learner.")
    correction: Literal["vtrace", "gae"] = Field(
        "vtrace", description="How advantages are computed; gae ignores staleness."
    )
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Step size of Adam.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Course of the step size over max_steps."
    )
    discount: float = Field(0.99, ge=0, le=1, description="Discount per step (gamma).")
    trace_lambda: float = Field(
        0.95, ge=0, le=1, description="Decay of the multi-step estimate (lambda of GAE and V-trace)."
    )
    rho_bar: float = Field(1.0, gt=0, le=100, description="Truncation of importance weights in V-trace targets.")
    c_bar: float = Field(1.0, gt=0, le=100, description="Truncation of importance weights in V-trace traces.")
    clip_ratio: float = Field(0.2, gt=0, le=10, description="PPO clip range around a ratio of 1.")
    value_coef: float = Field(0.5, ge=0, le=100, description="Weight of the value loss.")
    entropy_coef: float = Field(0.01, ge=0, le=10, description="Weight of the entropy bonus.")
    normalize_advantages: bool = Field(True, description="Scale advantages to zero mean and unit deviation per batch.")
    epochs: int = Field(2, ge=1, le=100, description="Passes over each batch.")
    minibatches: int = Field(4, ge=1, le=1024, description="Optimiser updates per pass.")
    adam_epsilon: float = Field(1e-5, gt=0, le=1, description="Epsilon of Adam.")

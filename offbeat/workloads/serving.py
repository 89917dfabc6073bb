"""A checkpoint's `policy/` folder as a model that others can load: MLflow's `loader_module` contract, without MLflow.

MLflow calls `_load_pyfunc` with the folder and talks to what comes back through `predict`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.errors import WorkloadError

if TYPE_CHECKING:
    from offbeat.workloads.control.policy import ActorCritic
    from offbeat.workloads.language.policy import LanguagePolicy

NDArray = np.ndarray[Any, Any]


class PolicyModel:
    """Maps observations to greedy actions, as the environment takes them."""

    def __init__(self, policy: "ActorCritic") -> None:
        self._policy = policy

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> NDArray:
        """Greedy actions [N] (Discrete, from its own start) or [N, A] (Box, flattened, within bounds).

        model_input: observations [N, *observation_shape] as an array, nested lists, or a pandas DataFrame with one
        column per number, or with one column of whole observations. Raises WorkloadError for any other shape or NaN.
        """
        import torch

        from offbeat.workloads.control.columns import Box

        actions = self._policy.greedy(torch.from_numpy(self._observations(model_input))).numpy()
        action = self._policy.spaces.action
        if isinstance(action, Box):
            clipped: NDArray = np.clip(actions, action.low, action.high).astype(np.float32)
            return clipped
        return actions + action.start

    def _observations(self, model_input: Any) -> NDArray:
        spaces = self._policy.spaces
        shape = spaces.observation_shape
        try:
            array = _as_array(model_input).astype(spaces.observation_dtype)
        except (TypeError, ValueError) as error:
            raise WorkloadError(f"observations: {error}; expected numbers [N, {', '.join(map(str, shape))}]") from error
        if array.ndim == 2 and array.shape[1] == np.prod(shape):
            array = array.reshape(len(array), *shape)
        if array.shape[1:] != shape or array.ndim == 0:
            raise WorkloadError(f"observations: got shape {array.shape}, expected [N, {', '.join(map(str, shape))}]")
        if not np.isfinite(array).all():
            raise WorkloadError("observations: got NaN or infinity, expected finite numbers")
        return np.ascontiguousarray(array)


class TextModel:
    """Maps prompts to greedy completions."""

    def __init__(self, policy: "LanguagePolicy") -> None:
        self._policy = policy

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[str]:
        """One text per prompt.

        model_input: a list of texts or of conversations (lists of messages with role and content), or a pandas
        DataFrame with one column of them. Raises WorkloadError for anything else.
        """
        from offbeat.workloads.language.answering import answer

        return answer(self._policy, _as_prompts(model_input))


def _load_pyfunc(path: str) -> PolicyModel | TextModel:
    """The model in a checkpoint's `policy/` folder; raises CheckpointError."""
    folder = Path(path)
    if (folder / "config.json").exists() or (folder / "adapter_config.json").exists():
        from offbeat.workloads.language.policy import open_policy

        return TextModel(open_policy(folder))
    from offbeat.workloads.control.policy import load_actor_critic

    return PolicyModel(load_actor_critic(folder))


def _as_prompts(model_input: Any) -> list[Any]:
    if hasattr(model_input, "iloc"):
        if model_input.shape[1] != 1:
            raise WorkloadError(f"prompts: got {model_input.shape[1]} columns, expected one of texts or conversations")
        return list(model_input.iloc[:, 0])
    if isinstance(model_input, str) or not hasattr(model_input, "__iter__"):
        raise WorkloadError(f"prompts: got a {type(model_input).__name__}, expected a list of texts or conversations")
    return list(model_input)


def _as_array(model_input: Any) -> NDArray:
    # A pandas DataFrame, without importing pandas: a column of whole observations is an object array of arrays.
    values = np.asarray(model_input.to_numpy() if hasattr(model_input, "to_numpy") else model_input)
    if values.dtype == object and values.ndim == 2 and values.shape[1] == 1:
        return np.array([np.asarray(cell) for cell in values[:, 0]])
    return values

"""Stepping a vector environment with a policy and recording each slot, in every autoreset mode of Gymnasium.

observations[t] ──> policy.act ──> actions ──> env.step ──> rewards, done, observations[t + 1]
                                                   │
           next-step: the slot after a done only resets; its reward and done flags are void
           same-step: the final observation of a truncated slot comes in infos["final_obs"]
           disabled:  it is what step returned, and the reset is ours, by options["reset_mask"]
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from offbeat.config import ControlConfig
from offbeat.errors import WorkloadError
from offbeat.workloads.control.buffers import Unroll
from offbeat.workloads.control.columns import Spaces
from offbeat.workloads.control.environment import autoreset_mode, make_vector_env, name_of
from offbeat.workloads.control.spaces import ActionDecoder, ObservationEncoder

if TYPE_CHECKING:
    from offbeat.workloads.control.policy import ActorCritic

NDArray = np.ndarray[Any, Any]


class Stepper:
    """One vector environment and the unroll it fills. An environment is foreign code: whatever it raises or returns
    that it must not becomes a WorkloadError with its name and the step, and the stepper must then be thrown away.
    """

    def __init__(self, config: ControlConfig, spaces: Spaces, randomness: np.random.SeedSequence) -> None:
        env_seed, action_seed = (int(word) for word in randomness.generate_state(2))
        self.unroll = Unroll(spaces, num_envs=config.num_envs, length=config.unroll_length)
        self._tensors = torch.from_numpy(self.unroll.observations).unbind()  # views, one a slot
        self._name, self._spaces = name_of(config), spaces
        self._env = make_vector_env(config, num_envs=config.num_envs)
        self._mode = autoreset_mode(self._env)
        self._encoder = ObservationEncoder(self._env.single_observation_space, spaces)
        self._decode = ActionDecoder(self._env.action_space, spaces.action)
        self._generator = torch.Generator().manual_seed(action_seed)
        # Gymnasium seeds environment i with seed + i, and wants it within 31 bits.
        self._env_seed = env_seed % (2**31 - config.num_envs)
        self._resetting = np.zeros(config.num_envs, np.bool_)
        self._num_steps = -1  # not yet reset

    def run(self, policy: "ActorCritic") -> None:
        """Fill one unroll."""
        try:
            with np.errstate(over="ignore"):  # what overflows float32 is reported as the infinity it becomes
                self._fill(policy)
        except WorkloadError as error:
            raise WorkloadError(f"{self._name}, step {max(0, self._num_steps)}: {error}") from error

    def close(self) -> None:
        """Close the environment, whatever state it is in."""
        try:
            self._env.close()
        except Exception as error:
            raise WorkloadError(f"{self._name}: close raised {_describe(error)}") from error

    def _fill(self, policy: "ActorCritic") -> None:
        if self._num_steps < 0:
            self._begin()
        self.unroll.begin()
        for slot in range(self.unroll.length):
            self._act(policy, slot)
            self._step(slot)
            self._num_steps += 1

    def _begin(self) -> None:
        observations, _ = self._reset(seed=self._env_seed)
        self._encoder.write(observations, self.unroll.observations[-1])
        self._num_steps = 0

    def _act(self, policy: "ActorCritic", slot: int) -> None:
        actions, logprobs = policy.act(self._tensors[slot], self._generator)
        self.unroll.actions[slot] = actions.numpy()
        self.unroll.logprobs[slot] = logprobs.numpy()

    def _step(self, slot: int) -> None:
        unroll, actions = self.unroll, self._decode(self.unroll.actions[slot])
        try:
            observations, rewards, terminated, truncated, infos = self._env.step(actions)
        except Exception as error:
            raise WorkloadError(f"step raised {_describe(error)}") from error
        self._record("rewards", rewards, unroll.rewards[slot])
        self._record("terminated", terminated, unroll.terminated[slot])
        self._record("truncated", truncated, unroll.truncated[slot])
        self._encoder.write(observations, unroll.observations[slot + 1])
        if self._mode is AutoresetMode.NEXT_STEP:
            self._void_resets(slot)
        elif (done := unroll.terminated[slot] | unroll.truncated[slot]).any():
            self._keep_finals(slot, done, infos)
        if not np.isfinite(unroll.rewards[slot]).all():
            which = int(np.flatnonzero(~np.isfinite(unroll.rewards[slot]))[0])
            got = f"got reward {unroll.rewards[slot, which]} from environment {which}"
            raise WorkloadError(f"{got}, expected finite float32 numbers")

    def _record(self, what: str, values: Any, out: NDArray) -> None:
        got = np.asarray(values)
        if got.shape != out.shape or got.dtype.kind not in "fiub":
            raise WorkloadError(f"got {what} {got.dtype} {got.shape}, expected numbers {out.shape}")
        np.copyto(out, got, casting="unsafe")

    def _void_resets(self, slot: int) -> None:
        unroll, resetting = self.unroll, self._resetting
        unroll.reset[slot] = resetting
        if resetting.any():
            unroll.rewards[slot][resetting] = 0
            unroll.terminated[slot][resetting] = False
            unroll.truncated[slot][resetting] = False
        np.logical_or(unroll.terminated[slot], unroll.truncated[slot], out=resetting)

    def _keep_finals(self, slot: int, done: NDArray, infos: dict[str, Any]) -> None:
        envs = np.flatnonzero(self.unroll.truncated[slot] & ~self.unroll.terminated[slot])
        following = self.unroll.observations[slot + 1]
        if self._mode is AutoresetMode.SAME_STEP:
            if len(envs):
                self.unroll.add_finals(envs, self._encode_rows(_final_rows(infos, envs)))
            return
        self.unroll.add_finals(envs, following[envs])
        observations, _ = self._reset(options={"reset_mask": done})
        following[done] = self._encode_rows(np.asarray(observations)[done])

    def _encode_rows(self, rows: NDArray) -> NDArray:
        encoded = np.zeros((len(rows), *self._spaces.observation_shape), self._spaces.observation_dtype)
        self._encoder.write(rows, encoded)
        return encoded

    def _reset(self, **kwargs: Any) -> tuple[Any, Any]:
        try:
            observations, infos = self._env.reset(**kwargs)
        except Exception as error:
            raise WorkloadError(f"reset raised {_describe(error)}") from error
        return observations, infos


def _final_rows(infos: dict[str, Any], envs: NDArray) -> NDArray:
    """True final observations of these environments; Gymnasium puts them in an array of arrays beside a mask."""
    finals, mask = infos.get("final_obs"), infos.get("_final_obs")
    if finals is None or (mask is not None and not np.asarray(mask)[envs].all()):
        raise WorkloadError(f"got no infos['final_obs'] for truncated environments {envs.tolist()}, as same-step needs")
    rows = [np.asarray(finals[env]) for env in envs]
    if len({row.shape for row in rows}) > 1:
        raise WorkloadError(f"got infos['final_obs'] of different shapes: {[row.shape for row in rows]}")
    return np.stack(rows)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

"""The learner: exact repetition, what a slot may see, saving and loading, and that it learns."""

import json

import numpy as np
import pytest
import torch

from offbeat.algorithms.determinism import make_deterministic
from offbeat.config import AppoConfig, ControlConfig, PolicyConfig, RunConfig
from offbeat.config.models import TrainingConfig
from offbeat.errors import CheckpointError, ContractViolation
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.control.columns import RESET, TERMINATED, TRUNCATED, Box, Discrete, Spaces, control_schema
from offbeat.workloads.control.learner import ControlLearner
from offbeat.workloads.control.unrolls import unrolls_of

LENGTH = 8
DISCRETE = Spaces(observation_shape=(3,), observation_dtype="float32", action=Discrete(n=2))
CONTINUOUS = Spaces(
    observation_shape=(3,), observation_dtype="float32", action=Box(shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2)
)
IMAGE = Spaces(observation_shape=(8, 8, 1), observation_dtype="uint8", action=Discrete(n=2))


@pytest.fixture(autouse=True)
def _deterministic():
    threads = torch.get_num_threads()
    make_deterministic(1)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def learner(spaces: Spaces = DISCRETE, *, seed: int = 0, workload: dict | None = None, **algorithm) -> ControlLearner:
    policy = PolicyConfig(hidden_sizes=(16,), conv_channels=(4,))
    config = RunConfig(
        seed=seed,
        workload=ControlConfig(unroll_length=LENGTH, policy=policy, **(workload or {})),
        training=TrainingConfig(batch_size=8, max_steps=10, algorithm=AppoConfig(**algorithm)),
    )
    return ControlLearner(config, spaces)


def arrays(spaces: Spaces = DISCRETE, rows: int = 12, seed: int = 0) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    shape = (rows, LENGTH + 1, *spaces.observation_shape)
    pixels = spaces.observation_dtype == "uint8"
    if isinstance(spaces.action, Discrete):
        actions = rng.integers(0, spaces.action.n, (rows, LENGTH))
    else:
        actions = rng.normal(size=(rows, LENGTH, spaces.action.size))
    return {
        "min_version": np.zeros(rows),
        "max_version": np.zeros(rows),
        "finished_at_ns": np.zeros(rows),
        "observations": rng.integers(0, 256, shape) if pixels else rng.normal(size=shape),
        "actions": actions,
        "rewards": rng.normal(size=(rows, LENGTH)),
        "logprobs": np.full((rows, LENGTH), -0.7),
        "flags": np.zeros((rows, LENGTH), np.uint8),
        "final_observations": [[]] * rows,
        "episode_returns": [[]] * rows,
        "episode_lengths": [[]] * rows,
    }


def batch(spaces: Spaces = DISCRETE, **columns: object) -> TrajectoryBatch:
    shape, dtype = spaces.observation_shape, spaces.observation_dtype
    schema = control_schema(
        observation_shape=shape, observation_dtype=dtype, action=spaces.action, unroll_length=LENGTH
    )
    return TrajectoryBatch.from_arrays(schema, {**arrays(spaces), **columns})


def eventful(spaces: Spaces = DISCRETE, seed: int = 0) -> TrajectoryBatch:
    """Twelve unrolls: terminations and truncations, next-step in the first half, same-step in the second."""
    columns = arrays(spaces, seed=seed)
    flags = columns["flags"]
    flags[:6, 2], flags[:6, 3] = TERMINATED, RESET
    flags[3:6, 5], flags[3:6, 6] = TRUNCATED, RESET
    flags[6:, 1], flags[6:, 4] = TRUNCATED, TERMINATED
    finals = np.random.default_rng(seed + 1).normal(size=(6, 3))
    columns["final_observations"] = [[]] * 6 + [list(row) for row in finals]
    columns["episode_returns"] = [[10.0]] * 6 + [[20.0, 30.0]] * 6
    columns["episode_lengths"] = [[3]] * 6 + [[2, 3]] * 6
    return batch(spaces, **columns)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS, IMAGE])
def test_equal_learners_stay_bit_equal(spaces: Spaces):
    first, second = learner(spaces), learner(spaces)
    for seed in range(3):
        data = batch(spaces, **arrays(spaces, seed=seed))
        assert first.step(data, seed=seed) == second.step(data, seed=seed)
        assert first.digest() == second.digest()
    assert first.digest() != learner(spaces).digest()


def test_the_seed_of_a_step_matters():
    first, second = learner(), learner()
    first.step(eventful(), seed=1)
    second.step(eventful(), seed=2)
    assert first.digest() != second.digest()


def test_how_the_records_were_cut_changes_nothing():
    whole, pieces = (
        learner(workload={"normalize_observations": True}),
        learner(workload={"normalize_observations": True}),
    )
    data = eventful()
    cut = TrajectoryBatch.concat([data.slice(at, at + 1) for at in range(12)])
    moved = TrajectoryBatch.concat([batch(), data]).slice(12, 24)
    whole.step(data, seed=0)
    pieces.step(cut, seed=0)
    assert whole.digest() == pieces.digest()
    shifted = learner(workload={"normalize_observations": True})
    shifted.step(moved, seed=0)
    assert shifted.digest() == whole.digest()


@pytest.mark.parametrize("options", [{}, {"normalize_observations": True, "normalize_rewards": True}])
def test_saved_and_loaded_learners_go_on_bit_equal(tmp_path, options: dict):
    original = learner(workload=options, lr_schedule="linear")
    for seed in range(2):
        original.step(eventful(seed=seed), seed=seed)
    original.save(tmp_path)
    loaded = learner(workload=options, lr_schedule="linear", seed=9)
    loaded.load(tmp_path)
    assert loaded.digest() == original.digest()
    assert loaded.step(eventful(seed=5), seed=5) == original.step(eventful(seed=5), seed=5)
    assert loaded.digest() == original.digest()


def test_a_learner_saved_before_its_first_step_loads(tmp_path):
    original = learner()
    original.save(tmp_path)
    loaded = learner(seed=3)
    loaded.load(tmp_path)
    assert loaded.digest() == original.digest()


def test_loading_anything_else_is_a_checkpoint_error_and_changes_nothing(tmp_path):
    original, other = learner(), learner(IMAGE)
    original.step(eventful(), seed=0)
    original.save(tmp_path)
    before = other.digest()
    with pytest.raises(CheckpointError, match="spaces"):
        other.load(tmp_path)
    assert other.digest() == before
    target = learner(workload={"normalize_rewards": True})
    with pytest.raises(CheckpointError, match="optimizer"):
        target.load(tmp_path)
    state = tmp_path / "learner.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "format": "other"}))
    with pytest.raises(CheckpointError):
        learner().load(tmp_path)
    state.unlink()
    with pytest.raises(CheckpointError):
        learner().load(tmp_path)


def test_weights_are_copies():
    subject = learner()
    weights = subject.weights()
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    subject.step(eventful(), seed=0)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in weights.items())
    assert not torch.equal(subject.weights()["value_head.bias"], kept["value_head.bias"])


def test_reset_slots_are_never_trained_on():
    columns = arrays()
    columns["flags"][:, 2], columns["flags"][:, 3] = TERMINATED, RESET
    data = batch(**columns)
    for name, value in (("rewards", 50.0), ("logprobs", -9.0), ("actions", 1)):
        columns[name] = np.array(columns[name], copy=True)
        columns[name][:, 3] = value
    # The final observation's own value is a reset slot's input: a terminated episode never bootstraps from it.
    columns["observations"][:, 3] = 7.0
    first, second = learner(), learner()
    metrics = first.step(data, seed=0)
    second.step(batch(**columns), seed=0)
    assert first.digest() == second.digest()
    assert metrics["samples"] == 12 * (LENGTH - 1)


def estimates(subject: ControlLearner, data: TrajectoryBatch) -> tuple[torch.Tensor, torch.Tensor]:
    part = unrolls_of(data, torch.device("cpu"))
    logprobs, _, values = subject._policy.evaluate_unrolls(part.observations, part.actions)
    made = subject._estimates(part, values.detach(), (logprobs - part.behaviour_logprobs).detach())
    return made.targets, made.advantages


@pytest.mark.parametrize("correction", ["vtrace", "gae"])
@pytest.mark.parametrize("mode", ["next-step", "same-step"])
@pytest.mark.parametrize("done", [TERMINATED, TRUNCATED])
def test_nothing_of_the_next_episode_leaks(correction: str, mode: str, done: int):
    columns, at = arrays(), 3
    columns["flags"][:, at] = done
    if mode == "next-step":
        columns["flags"][:, at + 1] = RESET
    elif done == TRUNCATED:
        columns["final_observations"] = [[0.1, 0.2, 0.3]] * 12
    begin = at + 2 if mode == "next-step" else at + 1
    subject = learner(correction=correction)
    before = estimates(subject, batch(**columns))
    columns["observations"][:, begin:] += 5.0
    columns["rewards"][:, at + 1 :] -= 3.0
    columns["logprobs"][:, at + 1 :] -= 1.0
    after = estimates(subject, batch(**columns))
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[:, : at + 1], new[:, : at + 1])
        assert not torch.equal(old[:, begin:], new[:, begin:])


@pytest.mark.parametrize(("at", "flag"), [(3, 0), (3, TERMINATED), (3, TRUNCATED), (LENGTH - 1, TRUNCATED)])
def test_one_step_targets_bootstrap_from_the_right_value_in_both_modes(at: int, flag: int):
    subject = learner(correction="gae", trace_lambda=0.0, discount=0.5)
    columns = arrays()
    columns["flags"][:, at] = flag
    final = np.random.default_rng(3).normal(size=(12, 3)).astype(np.float32)

    def bootstrap(data: TrajectoryBatch) -> np.ndarray:
        return ((estimates(subject, data)[0][:, at].numpy() - columns["rewards"][:, at]) / 0.5).astype(np.float32)

    following = subject._policy.value(torch.tensor(columns["observations"][:, at + 1], dtype=torch.float32)).numpy()
    expected = np.zeros(12) if flag == TERMINATED else following
    np.testing.assert_allclose(bootstrap(batch(**columns)), expected, atol=1e-5)
    if flag == TRUNCATED:
        same_step = batch(**{**columns, "final_observations": [list(row) for row in final]})
        expected = subject._policy.value(torch.from_numpy(final)).numpy()
        np.testing.assert_allclose(bootstrap(same_step), expected, atol=1e-5)


def test_both_done_flags_count_as_terminated():
    columns = arrays()
    columns["flags"][:, 3] = TERMINATED
    once = estimates(learner(), batch(**columns))
    columns["flags"][:, 3] = TERMINATED | TRUNCATED
    twice = estimates(learner(), batch(**columns))
    assert all(torch.equal(first, second) for first, second in zip(once, twice, strict=True))


def test_final_observations_that_do_not_fit_are_refused():
    columns = arrays()
    columns["flags"][:, 3] = TRUNCATED
    columns["final_observations"] = [[0.0] * 6] + [[]] * 11
    with pytest.raises(ContractViolation, match="final_observations of 1 trajectories: got 6 numbers, expected 3"):
        learner().step(batch(**columns), seed=0)


def test_metrics_name_samples_episodes_and_the_learning_rate():
    subject = learner(lr_schedule="linear", learning_rate=0.01)
    metrics = subject.step(eventful(), seed=0)
    assert metrics["samples"] == 12 * LENGTH - 9
    assert (metrics["episodes"], metrics["episode_return_mean"], metrics["episode_length_mean"]) == (
        18.0,
        pytest.approx((6 * 10 + 6 * 50) / 18),
        pytest.approx((6 * 3 + 6 * 5) / 18),
    )
    assert metrics["learning_rate"] == 0.01
    assert subject.step(batch(), seed=1)["learning_rate"] == pytest.approx(0.009)
    assert "episode_return_mean" not in subject.step(batch(), seed=2)
    assert {"training_loss", "policy_loss", "value_loss", "entropy", "clip_fraction", "approx_kl", "grad_norm"} <= set(
        metrics
    )


def test_an_update_that_is_not_finite_is_left_out():
    columns = arrays()
    columns["rewards"][:] = 1e38
    subject = learner(epochs=1, minibatches=1)
    before = subject.weights()
    assert subject.step(batch(**columns), seed=0)["skipped_updates"] == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in subject.weights().items())


def test_scaled_rewards_do_not_depend_on_their_unit():
    small, large = learner(workload={"normalize_rewards": True}), learner(workload={"normalize_rewards": True})
    columns = arrays()
    first = small.step(batch(**columns), seed=0)
    second = large.step(batch(**{**columns, "rewards": columns["rewards"] * 1000}), seed=0)
    assert first["value_loss"] == pytest.approx(second["value_loss"], rel=1e-4)


@pytest.mark.parametrize("correction", ["vtrace", "gae"])
def test_it_learns_which_of_two_actions_pays(correction: str):
    subject = learner(correction=correction, learning_rate=0.02, entropy_coef=0.0)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for seed in range(30):
        columns = arrays(seed=seed)
        seen = torch.tensor(columns["observations"][:, :-1].reshape(-1, 3), dtype=torch.float32)
        actions, logprobs = subject._policy.act(seen, generator)
        columns["actions"] = actions.numpy().reshape(12, LENGTH)
        columns["logprobs"] = logprobs.numpy().reshape(12, LENGTH)
        columns["rewards"] = (columns["actions"] == (columns["observations"][:, :-1, 0] > 0)).astype(float)
        columns["flags"][:] = TERMINATED
        subject.step(batch(**columns), seed=seed)
    seen = torch.tensor(rng.normal(size=(1000, 3)), dtype=torch.float32)
    assert (subject._policy.greedy(seen) == (seen[:, 0] > 0)).float().mean() > 0.95

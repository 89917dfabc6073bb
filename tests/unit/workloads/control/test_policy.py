"""The actor-critic: sampling, scoring, weights, normalisation, and its folder."""

import json
import math

import numpy as np
import pytest
import torch

from offbeat.config import PolicyConfig
from offbeat.errors import CheckpointError, UnsupportedSpace, WorkloadError
from offbeat.workloads.control.columns import Box, Discrete, Spaces
from offbeat.workloads.control.policy import ActorCritic, load_actor_critic, make_actor_critic, save_actor_critic

BOX = Box(shape=(2,), low=(-1.0, -math.inf), high=(1.0, math.inf))
FLAT = Spaces(observation_shape=(3,), observation_dtype="float32", action=Discrete(n=4, start=1))
CONTINUOUS = Spaces(observation_shape=(3,), observation_dtype="float32", action=BOX)
SMALL = PolicyConfig(hidden_sizes=(8,), conv_channels=(4, 4))


def make(spaces: Spaces = FLAT, seed: int = 0, normalize: bool = False, **config: object) -> ActorCritic:
    return make_actor_critic(SMALL.model_copy(update=config), spaces, normalize=normalize, seed=seed)


def observations(spaces: Spaces, rows: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    shape = (rows, *spaces.observation_shape)
    if spaces.observation_dtype == "uint8":
        return torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def sharpened(policy: ActorCritic) -> ActorCritic:
    """The same policy with a head large enough that its probabilities differ."""
    with torch.no_grad():
        policy.policy_head.weight.mul_(100)
    return policy


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("spaces", [FLAT, CONTINUOUS])
def test_act_reports_the_logprobs_that_scoring_finds(spaces: Spaces, shared: bool):
    policy = sharpened(make(spaces, shared_trunk=shared))
    seen = observations(spaces, 50)
    actions, logprobs = policy.act(seen, torch.Generator().manual_seed(1))
    scored, _, values = policy.evaluate_actions(seen, actions.clone())
    torch.testing.assert_close(scored.detach(), logprobs.clone())
    torch.testing.assert_close(values.detach(), policy.value(seen).clone())


def test_discrete_actions_come_as_often_as_their_probabilities():
    policy = sharpened(make())
    row = observations(FLAT, 1)
    actions, logprobs = policy.act(row.expand(20_000, -1), torch.Generator().manual_seed(0))
    shares = torch.bincount(actions, minlength=4) / 20_000
    expected = policy(row)[0].detach().softmax(-1)[0]
    assert (shares - expected).abs().max() < 0.015
    assert (logprobs - expected.log()[actions]).abs().max() < 1e-5


def test_continuous_actions_have_the_mean_and_deviation_of_the_head():
    policy = make(CONTINUOUS, initial_log_std=-1.0)
    row = observations(CONTINUOUS, 1)
    actions, _ = policy.act(row.expand(20_000, -1), torch.Generator().manual_seed(0))
    assert (actions.mean(0) - policy(row)[0].detach()[0]).abs().max() < 0.01
    assert (actions.std(0) - math.exp(-1.0)).abs().max() < 0.01


def test_scores_agree_with_torch_distributions():
    seen = observations(FLAT, 20)
    policy = sharpened(make())
    actions = torch.arange(20) % 4
    logprobs, entropies, _ = policy.evaluate_actions(seen, actions)
    expected = torch.distributions.Categorical(logits=policy(seen)[0])
    torch.testing.assert_close(logprobs, expected.log_prob(actions))
    torch.testing.assert_close(entropies, expected.entropy())

    policy = make(CONTINUOUS, initial_log_std=0.3)
    actions = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    logprobs, entropies, _ = policy.evaluate_actions(seen, actions)
    normal = torch.distributions.Normal(policy(seen)[0], policy.log_std.exp())
    torch.testing.assert_close(logprobs, normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(entropies, normal.entropy().sum(-1))


@pytest.mark.parametrize("shared", [False, True])
def test_unrolls_are_scored_like_single_steps(shared: bool):
    policy = sharpened(make(shared_trunk=shared))
    seen = observations(FLAT, 5 * 4).view(5, 4, 3)
    actions = (torch.arange(15) % 4).view(5, 3)
    logprobs, entropies, values = policy.evaluate_unrolls(seen, actions)
    flat = policy.evaluate_actions(seen[:, :-1].reshape(15, 3), actions.view(15))
    torch.testing.assert_close(logprobs.flatten(), flat[0])
    torch.testing.assert_close(entropies.flatten(), flat[1])
    torch.testing.assert_close(values[:, :-1].flatten(), flat[2])
    torch.testing.assert_close(values[:, -1], policy.value(seen[:, -1]).clone())


def test_greedy_is_the_likeliest_action_and_the_mean():
    policy = sharpened(make())
    seen = observations(FLAT, 30)
    assert torch.equal(policy.greedy(seen), policy(seen)[0].argmax(-1))
    policy = make(CONTINUOUS)
    assert torch.equal(policy.greedy(seen), policy(seen)[0])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((16, 12, 3), "uint8"),
        ((3, 16, 12), "uint8"),
        ((16, 12), "uint8"),
        ((64, 64, 1), "float32"),
        ((5, 2), "float32"),
    ],
)
def test_images_in_any_layout_act_and_learn(shape: tuple[int, ...], dtype: str):
    spaces = Spaces(observation_shape=shape, observation_dtype=dtype, action=Discrete(n=2))
    policy = make(spaces)
    seen = observations(spaces, 6)
    actions, _ = policy.act(seen, torch.Generator().manual_seed(0))
    logprobs, _, values = policy.evaluate_actions(seen, actions.clone())
    (logprobs.sum() + values.sum()).backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_bytes_are_scaled_to_one():
    spaces = Spaces(observation_shape=(8, 8, 3), observation_dtype="uint8", action=Discrete(n=2))
    assert make(spaces).scale(torch.full((1, 8, 8, 3), 255, dtype=torch.uint8)).unique().tolist() == [1.0]


def test_images_too_small_for_the_convolutions_are_refused():
    spaces = Spaces(observation_shape=(3, 3, 1), observation_dtype="uint8", action=Discrete(n=2))
    with pytest.raises(UnsupportedSpace, match="conv_channels"):
        make(spaces)


def test_a_seed_gives_one_policy_and_leaves_torch_alone():
    state = torch.get_rng_state()
    first, second, other = make(seed=5), make(seed=5), make(seed=6)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert not torch.equal(first.policy_head.weight, other.policy_head.weight)


def test_tanh_is_tanh_with_its_gradient():
    trunk = make(activation="tanh").actor[1]
    inputs = torch.linspace(-12, 12, 1001, dtype=torch.float32, requires_grad=True)
    trunk(inputs).sum().backward()
    torch.testing.assert_close(trunk(inputs), inputs.tanh(), atol=3e-7, rtol=0)
    torch.testing.assert_close(inputs.grad, 1 - inputs.detach().tanh() ** 2, atol=1e-6, rtol=0)
    with torch.inference_mode():
        torch.testing.assert_close(trunk(inputs), inputs.tanh(), atol=3e-7, rtol=0)


def test_normaliser_holds_the_moments_of_everything_seen():
    policy = make(normalize=True)
    seen = observations(FLAT, 1000) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([5.0, -3.0, 1000.0])
    policy.update_normalizer(seen[:300])
    policy.update_normalizer(seen[300:])
    scaled = policy.scale(seen)
    assert scaled.mean(0).abs().max() < 2e-3
    assert (scaled.std(0) - 1).abs().max() < 2e-3
    assert {"normalizer.mean", "normalizer.variance", "normalizer.count"} <= policy.state_dict().keys()


def test_load_weights_takes_over_exactly():
    source, target = make(seed=1, normalize=True), make(seed=2, normalize=True)
    source.update_normalizer(observations(FLAT, 10))
    target.load_weights(source.state_dict())
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, target.state_dict()[name])


def test_load_weights_refuses_other_names_shapes_and_nan_and_changes_nothing():
    policy = make()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    missing = {name: tensor for name, tensor in before.items() if name != "value_head.bias"}
    reshaped = {**before, "value_head.bias": torch.zeros(2)}
    broken = {**before, "value_head.bias": torch.tensor([float("nan")])}
    for weights, words in ((missing, "value_head.bias"), (reshaped, r"\(2,\)"), (broken, "NaN")):
        with pytest.raises(WorkloadError, match=words):
            policy.load_weights({name: tensor + 0 for name, tensor in weights.items()})
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())


@pytest.mark.parametrize("spaces", [FLAT, CONTINUOUS])
def test_a_saved_policy_opens_without_the_configuration(tmp_path, spaces: Spaces):
    policy = make(spaces, normalize=True, activation="relu")
    save_actor_critic(policy, tmp_path / "policy")
    opened = load_actor_critic(tmp_path / "policy")
    assert (opened.spaces, opened.config, opened.normalize) == (policy.spaces, policy.config, True)
    seen = observations(spaces, 9)
    assert torch.equal(opened.greedy(seen), policy.greedy(seen))
    assert {path.name for path in (tmp_path / "policy").iterdir()} == {"policy.json", "policy.safetensors"}


@pytest.mark.parametrize("fault", ["no json", "no weights", "cut", "format", "shape", "text", "list"])
def test_a_broken_folder_is_a_checkpoint_error(tmp_path, fault: str):
    save_actor_critic(make(), tmp_path)
    shape, weights = tmp_path / "policy.json", tmp_path / "policy.safetensors"
    document = json.loads(shape.read_text())
    if fault == "no json":
        shape.unlink()
    elif fault == "no weights":
        weights.unlink()
    elif fault == "cut":
        weights.write_bytes(weights.read_bytes()[:-5])
    elif fault == "format":
        shape.write_text(json.dumps({**document, "format": "other"}))
    elif fault == "shape":
        shape.write_text(json.dumps({**document, "observation_shape": [7]}))
    else:
        shape.write_text("{" if fault == "text" else "[]")
    with pytest.raises(CheckpointError):
        load_actor_critic(tmp_path)

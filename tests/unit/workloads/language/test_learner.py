"""The learner: what it keeps, what it leaves out, and that a step is a function of state, batch and seed."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from offbeat.errors import CheckpointError, LogprobMismatch
from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.language.batches import completions_of
from offbeat.workloads.language.engine import Completion, Request, TransformersEngine
from offbeat.workloads.language.fed_trainer import FedTrainer
from offbeat.workloads.language.learner import LanguageLearner
from tests.unit.workloads.language.small_models import (
    PROMPTS,
    REWARDS,
    WRITTEN,
    make_base,
    make_batch,
    open_policy,
    recorded_batch,
    reference_logprobs,
    run_config,
    sections,
)

LORA = {"lora": {"rank": 4, "alpha": 8.0}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


def _learner(
    base: Path,
    *,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    **algorithm: Any,
) -> LanguageLearner:
    config = run_config(workload={"model": dict(model or {})}, algorithm=algorithm, **(training or {}))
    return LanguageLearner(config, *sections(config), open_policy(base, config))


def _same(first: LanguageLearner, second: LanguageLearner) -> bool:
    mine, theirs = first.weights(), second.weights()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_step_learns_and_measures(base: Path) -> None:
    learner = _learner(base)
    before = learner.weights()
    metrics = learner.step(recorded_batch(base), seed=0)
    assert learner.steps == 1
    assert any(not torch.equal(before[name], tensor) for name, tensor in learner.weights().items())
    expected = {
        "samples": 21.0,
        "reward_mean": 0.625,
        "episode_return_mean": 0.625,
        "unscored": 0.0,
        "equal_groups": 0.0,
        "completion_length_mean": 21 / 8,
        "cut_share": 0.0,
        "learning_rate": 1e-2,
        "skipped_updates": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    # The advantages of a group add up to nothing, so on-policy the loss is the KL-free zero of first order.
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_step_size_rises_in_a_straight_line_and_stays(base: Path) -> None:
    learner, batch = _learner(base, warmup_steps=3), recorded_batch(base)
    rates = [learner.step(batch, seed=seed)["learning_rate"] for seed in range(5)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])


def test_better_completions_become_likelier(base: Path) -> None:
    learner, batch = _learner(base), recorded_batch(base)
    model = learner._policy.model
    before = [float(reference_logprobs(model, p, w).sum()) for p, w in zip(PROMPTS, WRITTEN, strict=True)]
    for seed in range(3):
        learner.step(batch, seed=seed)
    after = [float(reference_logprobs(model, p, w).sum()) for p, w in zip(PROMPTS, WRITTEN, strict=True)]
    best, worst = 3, 0
    assert after[best] - before[best] > after[worst] - before[worst]


def test_a_step_is_a_function_of_state_batch_and_seed(base: Path) -> None:
    settings: dict[str, Any] = {"minibatches": 3, "epochs": 2}
    batch = recorded_batch(base, shift=0.1)
    first, again, other = (_learner(base, **settings) for _ in range(3))
    assert first.step(batch, seed=4) == again.step(batch, seed=4)
    other.step(batch, seed=5)
    assert first.digest() == again.digest()
    assert first.digest() != other.digest()


@pytest.mark.parametrize("model", [{}, LORA, {"dtype": "bfloat16"}], ids=["whole", "lora", "bfloat16"])
def test_save_and_load_make_the_next_step_bit_equal(base: Path, tmp_path: Path, model: dict[str, Any]) -> None:
    batch = recorded_batch(base, shift=0.1)
    learner = _learner(base, model=model, lr_schedule="linear")
    at_start = learner.digest()
    learner.step(batch, seed=1)
    assert learner.digest() != at_start
    learner.save(tmp_path)
    opened = _learner(base, model=model, lr_schedule="linear")
    opened.load(tmp_path)
    assert opened.steps == 1
    assert opened.digest() == learner.digest()
    assert opened.step(batch, seed=2) == learner.step(batch, seed=2)
    assert opened.digest() == learner.digest()
    assert _same(opened, learner)


def test_a_learner_at_step_0_is_saved_and_loaded_too(base: Path, tmp_path: Path) -> None:
    learner, batch = _learner(base), recorded_batch(base)
    learner.save(tmp_path)
    opened = _learner(base)
    opened.step(batch, seed=0)
    opened.load(tmp_path)
    assert (opened.steps, opened.digest()) == (0, learner.digest())
    opened.step(batch, seed=1)
    learner.step(batch, seed=1)
    assert opened.digest() == learner.digest()


def test_what_is_saved_opens_with_transformers(base: Path, tmp_path: Path) -> None:
    learner = _learner(base)
    learner.step(recorded_batch(base), seed=0)
    learner.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    assert tokenizer("2 + 2")["input_ids"] == learner._policy.tokenizer("2 + 2")["input_ids"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, learner.weights()[name]), name


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "learner.json").unlink(),
        lambda folder: (folder / "learner.json").write_text("{"),
        lambda folder: (folder / "learner.json").write_text("[]"),
        lambda folder: (folder / "learner.json").write_text('{"format": "another"}'),
        lambda folder: (folder / "optimizer.safetensors").write_bytes(b"damaged"),
        lambda folder: (folder / "optimizer.safetensors").unlink(),
    ],
)
def test_a_damaged_checkpoint_is_refused(base: Path, tmp_path: Path, damage: Any) -> None:
    learner = _learner(base)
    learner.save(tmp_path)
    damage(tmp_path)
    before = learner.digest()
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        learner.load(tmp_path)
    assert learner.digest() == before


def test_a_checkpoint_of_another_kind_of_learner_is_refused(base: Path, tmp_path: Path) -> None:
    _learner(base, model=LORA).save(tmp_path)
    with pytest.raises(CheckpointError, match="not the state of a learner with these parameters"):
        _learner(base).load(tmp_path)


def test_equal_groups_are_left_out_and_counted(base: Path) -> None:
    batch = recorded_batch(base, rewards=[1.0] * 4 + REWARDS[4:])
    learner, alone = _learner(base), _learner(base, training={"batch_size": 4})
    metrics = learner.step(batch, seed=0)
    expected = alone.step(batch.slice(4, 8), seed=0)
    assert metrics["equal_groups"] == 1
    assert metrics["samples"] == 21  # all were read
    assert metrics["training_loss"] == expected["training_loss"]
    assert learner.digest() == alone.digest()


def test_equal_groups_stay_where_they_are_asked_for(base: Path) -> None:
    batch = recorded_batch(base, rewards=[1.0] * 4 + REWARDS[4:])
    kept, left_out = _learner(base, skip_equal_groups=False), _learner(base)
    assert kept.step(batch, seed=0)["equal_groups"] == 1
    left_out.step(batch, seed=0)
    # Their tokens count in the mean of the losses, though their advantages are 0.
    assert kept.digest() != left_out.digest()


@pytest.mark.parametrize("reward", [1.0, math.nan])
def test_a_batch_of_equal_groups_alone_changes_nothing_but_counts(base: Path, reward: float) -> None:
    learner = _learner(base)
    before = learner.weights()
    metrics = learner.step(recorded_batch(base, rewards=[reward] * 8), seed=0)
    assert metrics["equal_groups"] == 2
    assert metrics["training_loss"] == 0
    assert learner.steps == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())
    assert all(math.isfinite(value) for value in metrics.values())


def test_unknown_rewards_have_no_influence(base: Path) -> None:
    rewards = [0.0, 1.0, math.nan, 2.0, 1.0, 0.0, math.nan, 1.0]
    learner, other = _learner(base), _learner(base)
    metrics = learner.step(recorded_batch(base, rewards=rewards), seed=0)
    assert metrics["unscored"] == 2
    assert metrics["reward_mean"] == pytest.approx(5 / 6)
    # The log-probs of the two completions cannot matter to what is learned: their advantage is 0.
    batch = recorded_batch(base, rewards=rewards)
    logprobs = [part.tolist() for part in _rows(batch, "logprobs")]
    logprobs[2] = [value - 0.1 for value in logprobs[2]]
    logprobs[6] = [value - 0.1 for value in logprobs[6]]
    other.step(make_batch(PROMPTS, WRITTEN, logprobs, rewards), seed=0)
    assert all(math.isfinite(value) for value in metrics.values())
    for name, tensor in learner.weights().items():
        torch.testing.assert_close(other.weights()[name], tensor)


def _rows(batch: TrajectoryBatch, name: str) -> Any:
    values, offsets = batch.ragged(name)
    return [values[begin:end] for begin, end in itertools.pairwise(offsets)]


@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("correction", ["clip", "truncated_sequence"])
def test_a_completion_of_length_zero_does_no_harm(base: Path, loss: str, correction: str) -> None:
    written = [[], *WRITTEN[1:6], [], WRITTEN[7]]
    learner = _learner(base, loss=loss, correction=correction, kl_coef=0.1, micro_batch_tokens=16)
    metrics = learner.step(recorded_batch(base, written=written), seed=0)
    assert metrics["skipped_updates"] == 0
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(bool(torch.isfinite(tensor).all()) for tensor in learner.weights().values())


@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_a_batch_of_empty_completions_teaches_nothing(base: Path, loss: str) -> None:
    learner = _learner(base, loss=loss)
    before = learner.weights()
    metrics = learner.step(recorded_batch(base, written=[[]] * 8), seed=0)
    assert metrics["samples"] == 0
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())


def test_out_of_memory_halves_the_passes_and_goes_on(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, failures = recorded_batch(base, shift=0.3), [True]
    expected = _learner(base, micro_batch_tokens=64)
    measured = expected.step(batch, seed=0)
    loss = FedTrainer.loss

    def failing(trainer: FedTrainer, tensors: Mapping[str, Any], **kwargs: int) -> torch.Tensor:
        found = loss(trainer, tensors, **kwargs)
        if len(tensors["completion_ids"]) > 1 and failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(FedTrainer, "loss", failing)
    learner = _learner(base, micro_batch_tokens=64)
    metrics = learner.step(batch, seed=0)
    assert not failures
    assert metrics["micro_batch_tokens"] == 32
    for name, tensor in learner.weights().items():
        torch.testing.assert_close(expected.weights()[name], tensor, rtol=1e-4, atol=1e-5)
    # What the failed try had measured is not counted twice.
    for name in ("training_loss", "grad_norm", "entropy", "clip_fraction"):
        assert metrics[name] == pytest.approx(measured[name], rel=1e-4, abs=1e-6), name


def test_the_halved_size_is_kept_with_the_state(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner(base, micro_batch_tokens=64)
    learner._updater.micro_batch_tokens = 32
    learner.save(tmp_path)
    opened = _learner(base, micro_batch_tokens=64)
    opened.load(tmp_path)
    assert opened.step(recorded_batch(base), seed=0)["micro_batch_tokens"] == 32


@pytest.mark.parametrize("correction", ["decoupled", "clip"])
def test_out_of_memory_while_scoring_halves_too(base: Path, monkeypatch: pytest.MonkeyPatch, correction: str) -> None:
    failures, logprobs = [True], FedTrainer.logprobs

    def failing(trainer: FedTrainer, tensors: Mapping[str, Any], **kwargs: bool) -> torch.Tensor:
        if failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logprobs(trainer, tensors, **kwargs)

    monkeypatch.setattr(FedTrainer, "logprobs", failing)
    learner = _learner(base, micro_batch_tokens=64, correction=correction, kl_coef=0.1)
    assert learner.step(recorded_batch(base), seed=0)["micro_batch_tokens"] == 32


def test_memory_that_is_never_enough_is_an_error_in_the_end(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def failing(*_: Any, **__: Any) -> torch.Tensor:
        tries.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(FedTrainer, "loss", failing)
    with pytest.raises(torch.OutOfMemoryError):
        _learner(base, micro_batch_tokens=64).step(recorded_batch(base), seed=0)
    assert len(tries) == 3  # 64, 32 and 16 tokens


def test_a_gradient_that_is_not_finite_is_left_out(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner(base)
    before = learner.weights()
    loss = FedTrainer.loss
    monkeypatch.setattr(FedTrainer, "loss", lambda *args, **kwargs: loss(*args, **kwargs) * math.inf)
    assert learner.step(recorded_batch(base), seed=0)["skipped_updates"] == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())


def test_with_lora_only_the_adapter_learns_and_is_published(base: Path) -> None:
    learner = _learner(base, model=LORA, kl_coef=0.1)
    model = learner._policy.model
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    learner.step(recorded_batch(base), seed=0)
    learner.step(recorded_batch(base), seed=1)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    weights = learner.weights()
    assert changed == set(weights)
    assert all("lora_" in name for name in weights)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("model", [{}, LORA], ids=["whole", "lora"])
def test_published_weights_fit_a_generators_policy(architecture: str, model: dict[str, Any], tmp_path: Path) -> None:
    own = make_base(tmp_path, architecture)
    learner = _learner(own, model=model)
    learner.step(recorded_batch(own), seed=0)
    learner.step(recorded_batch(own), seed=1)
    policy = open_policy(own, run_config(workload={"model": model}), seed=3)
    policy.load_weights(learner.weights())
    learner._policy.model.eval()
    for prompt, written in zip(PROMPTS, WRITTEN, strict=True):
        expected = reference_logprobs(learner._policy.model, prompt, written)
        assert torch.equal(reference_logprobs(policy.model, prompt, written), expected)


def test_weights_are_copies(base: Path) -> None:
    learner = _learner(base)
    weights = learner.weights()
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    learner.step(recorded_batch(base), seed=0)
    assert all(torch.equal(kept[name], tensor) for name, tensor in weights.items())


def test_gradient_checkpointing_computes_each_layer_twice_and_changes_no_number(base: Path) -> None:
    plain, saving = _learner(base), _learner(base, model={"gradient_checkpointing": True})
    calls = {id(learner): 0 for learner in (plain, saving)}
    for learner in (plain, saving):

        def count(*_: Any, whose: int = id(learner)) -> None:
            calls[whose] += torch.is_grad_enabled()

        learner._policy.model.model.layers[0].self_attn.q_proj.register_forward_hook(count)
        learner.step(recorded_batch(base), seed=0)
    assert (calls[id(plain)], calls[id(saving)]) == (1, 2)
    for name, tensor in plain.weights().items():
        torch.testing.assert_close(saving.weights()[name], tensor)


def test_gradient_checkpointing_with_lora_learns(base: Path) -> None:
    learner = _learner(base, model={"gradient_checkpointing": True, **LORA})
    before = learner.weights()
    learner.step(recorded_batch(base), seed=0)
    assert any(not torch.equal(before[name], tensor) for name, tensor in learner.weights().items())


def test_bfloat16_forward_passes_learn(base: Path) -> None:
    learner, computed = _learner(base, mixed_precision="bf16"), set()
    learner._policy.model.model.layers[0].self_attn.q_proj.register_forward_hook(
        lambda *found: computed.add(found[-1].dtype)
    )
    metrics = learner.step(recorded_batch(base), seed=0)
    assert torch.bfloat16 in computed
    assert metrics["skipped_updates"] == 0
    assert {tensor.dtype for tensor in learner.weights().values()} == {torch.float32}


def test_the_gradient_is_clipped(base: Path) -> None:
    learner = _learner(base, training={"gradient_clip": 1e-3})
    learner.step(recorded_batch(base), seed=0)
    norm = torch.stack([p.grad.norm() for p in learner._policy.trained.values() if p.grad is not None]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_measures_do_not_depend_on_how_passes_are_cut(base: Path, ratio: str) -> None:
    batch = recorded_batch(base, shift=0.3)
    whole, *others = (
        _learner(base, ratio=ratio, kl_coef=0.1, micro_batch_tokens=tokens).step(batch, seed=0)
        for tokens in (1000, 64, 32, 16)
    )
    for other in others:
        for name in ("training_loss", "grad_norm", "entropy", "kl", "clip_fraction"):
            assert other[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name
    assert 0 < whole["clip_fraction"] < 1


def test_a_loss_scaler_that_is_too_high_comes_down(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner(base)
    accelerator: Any = learner._updater.trainer.accelerator
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    # What accelerate sets up for float16 on a GPU.
    accelerator.scaler = scaler
    learner._updater.optimizer = AcceleratedOptimizer(
        learner._updater._inner_optimizer, device_placement=False, scaler=scaler
    )
    accelerator._optimizers = [learner._updater.optimizer]
    monkeypatch.setattr(accelerator, "native_amp", True)
    monkeypatch.setattr(type(accelerator), "mixed_precision", property(lambda _: "fp16"))
    skipped = [learner.step(recorded_batch(base), seed=seed)["skipped_updates"] for seed in range(12)]
    assert skipped[0] == 1
    assert skipped[-1] == 0
    assert scaler.get_scale() < 2.0**127
    assert skipped == sorted(skipped, reverse=True)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("model", [{}, LORA], ids=["whole", "lora"])
def test_what_the_engine_recorded_is_what_the_learner_scores(
    architecture: str, model: dict[str, Any], tmp_path: Path
) -> None:
    own = make_base(tmp_path, architecture)
    config = run_config(workload={"model": model, "sampling": {"temperature": 0.7, "max_new_tokens": 9}})
    workload, algorithm = sections(config)
    learner = LanguageLearner(config, workload, algorithm, open_policy(own, config))
    learner.step(recorded_batch(own), seed=0)
    learner.step(recorded_batch(own), seed=1)
    policy = open_policy(own, config, seed=5)
    policy.load_weights(learner.weights())
    engine = TransformersEngine(workload.sampling, num_sequences=3, generator=torch.Generator().manual_seed(0))
    engine.submit([Request(key=key, ids=prompt) for key, prompt in enumerate(PROMPTS)])
    written: dict[int, Completion] = {}
    while engine.num_open:
        written |= {completion.key: completion for completion in engine.advance(policy, 2)}
    batch = make_batch(
        PROMPTS, [written[key].ids for key in range(8)], [written[key].logprobs for key in range(8)], REWARDS
    )
    scores = learner._updater.score(completions_of(batch, torch.zeros(8)))
    for key, scored in enumerate(scores):
        torch.testing.assert_close(scored, torch.tensor(written[key].logprobs), rtol=1e-4, atol=1e-4)
    assert learner.step(batch, seed=2)["clip_fraction"] == 0  # on-policy


def test_recorded_logprobs_of_another_sampler_stop_the_run(base: Path) -> None:
    same = _learner(base, logprob_tolerance=0.05).step(recorded_batch(base), seed=0)
    assert same["logprob_difference"] == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(LogprobMismatch, match=r"differ by 0\.3 on average.*likely cause is another number type"):
        _learner(base, logprob_tolerance=0.05).step(recorded_batch(base, shift=0.3), seed=0)

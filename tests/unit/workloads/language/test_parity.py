"""Our loss and gradients against TRL's own trainer, called by itself on the same on-policy batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig as TrlConfig
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

from offbeat.trajectory import TrajectoryBatch
from offbeat.workloads.language.learner import LanguageLearner
from offbeat.workloads.language.policy import LanguagePolicy
from tests.unit.workloads.language.small_models import (
    make_base,
    make_batch,
    open_policy,
    reference_logprobs,
    run_config,
    sections,
)

PROMPTS = [[20, 21, 22]] * 4 + [[30, 31, 32, 33, 34, 35]] * 4
WRITTEN = [[40], [41, 42, 43], [44, 45], [46, 47, 48, 49, 50], [51, 52], [53, 54, 55, 56], [57], [58, 59, 60]]
REWARDS = [0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 0.0, 1.0]
TEMPERATURE = 0.8
MAX_NEW = 7


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def on_policy(base: Path) -> TrajectoryBatch:
    model = _nudged(open_policy(base, run_config())).model
    logprobs = [reference_logprobs(model, p, w, TEMPERATURE).tolist() for p, w in zip(PROMPTS, WRITTEN, strict=True)]
    return make_batch(PROMPTS, WRITTEN, logprobs, REWARDS)


def _nudged(policy: LanguagePolicy) -> LanguagePolicy:
    """Off the base model, so that a divergence from it is not 0."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in policy.trained.values():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy


def _padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids, mask = [], []
    for row in rows:
        fill = width - len(row)
        ids.append([pad] * fill + list(row) if left else list(row) + [pad] * fill)
        mask.append([0] * fill + [1] * len(row) if left else [1] * len(row) + [0] * fill)
    return torch.tensor(ids), torch.tensor(mask)


def _trl(
    base: Path, *, loss: str, ratio: str, kl_coef: float, folder: Path
) -> tuple[float, Mapping[str, torch.Tensor]]:
    """Loss and gradients of a plain GRPOTrainer on its own kind of inputs."""
    policy = _nudged(open_policy(base, run_config()))
    arguments = TrlConfig(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        num_generations=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        max_completion_length=MAX_NEW,
        temperature=TEMPERATURE,
        loss_type=loss,
        importance_sampling_level=ratio,
        epsilon=0.2,
        epsilon_high=0.28,
        beta=kl_coef,
        disable_dropout=True,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        processing_class=policy.tokenizer,
    )
    pad = policy.tokenizer.pad_token_id
    prompt_ids, prompt_mask = _padded(PROMPTS, pad, left=True)
    completion_ids, completion_mask = _padded(WRITTEN, pad, left=False)
    rewards = torch.tensor(REWARDS).view(-1, 4)
    centred = rewards - rewards.nanmean(1, keepdim=True)
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": (centred / (nanstd(rewards, dim=1, keepdim=True) + 1e-4)).flatten(),
        "num_items_in_batch": completion_mask.sum(),
    }
    if kl_coef:
        with torch.no_grad():
            inputs["ref_per_token_logps"] = trainer._get_per_token_logps_and_entropies(
                trainer.ref_model,
                torch.cat([prompt_ids, completion_ids], 1),
                torch.cat([prompt_mask, completion_mask], 1),
                completion_ids.shape[1],
            )[0]
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    found = trainer._compute_loss(trainer.model, inputs)
    found.backward()
    return float(found.detach()), {name: parameter.grad for name, parameter in policy.model.named_parameters()}


def _ours(base: Path, batch: TrajectoryBatch, tokens: int, **algorithm: Any) -> tuple[float, dict[str, torch.Tensor]]:
    workload = {"sampling": {"temperature": TEMPERATURE, "max_new_tokens": MAX_NEW}}
    config = run_config(workload=workload, algorithm={"micro_batch_tokens": tokens, **algorithm})
    learner = LanguageLearner(config, *sections(config), _nudged(open_policy(base, config)))
    loss = learner.step(batch, seed=0)["training_loss"]
    gradients = {n: p.grad for n, p in learner._policy.trained.items() if p.grad is not None}
    return loss, gradients


CASES = [
    {"loss": loss, "ratio": ratio, "kl_coef": kl_coef}
    for loss in ("grpo", "bnpo", "dr_grpo", "dapo")
    for ratio in ("token", "sequence")
    for kl_coef in (0.0, 0.1)
]


@pytest.mark.parametrize("settings", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_on_policy_it_is_trls_loss_and_gradient(
    base: Path, on_policy: TrajectoryBatch, tmp_path: Path, settings: dict[str, Any]
) -> None:
    expected, gradients = _trl(base, **settings, folder=tmp_path)
    for tokens in (1000, 32, 16):
        # On-policy every correction is the same.
        every = tokens == 32 and settings["loss"] == "dapo"
        for correction in ("clip", "none", "truncated_token", "decoupled") if every else ("clip",):
            found, ours = _ours(base, on_policy, tokens, correction=correction, **settings)
            assert found == pytest.approx(expected, rel=1e-5, abs=2e-7), (tokens, correction)
            assert ours.keys() == gradients.keys()
            for name, gradient in gradients.items():
                # Of each parameter's own largest entry: sums in another order differ in the last bits.
                bound = 1e-5 * float(gradient.abs().max())
                difference = float((ours[name] - gradient).abs().max())
                assert difference <= bound, (tokens, correction, name, difference, bound)

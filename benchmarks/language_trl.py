"""TRL's own synchronous GRPOTrainer on the model, prompts, reward and settings of a run of ours.

    python -m benchmarks.language_trl FOLDER_OF_A_RUN THREADS

Writes to the run's folder: trl/step-N.safetensors, the parameters every `strategy.checkpoint_freq` steps, and
trl/curve.json. The clock stands still while parameters are copied, and they are written when it has stopped.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from offbeat.config import language_sections
from offbeat.rewards import load_function
from offbeat.runs import Run
from offbeat.workloads.language.base_model import open_tokenizer
from offbeat.workloads.language.prompts import read_split

FOLDER = "trl"


class Curve(TrainerCallback):  # type: ignore[misc]
    """Copies of the parameters with the seconds since training began. `ready_at_ns`: when that was."""

    def __init__(self, every: int) -> None:
        self.ready_at_ns = 0
        self.seconds: dict[int, float] = {}
        self.copies: dict[int, dict[str, torch.Tensor]] = {}
        self._every = every
        self._begun_at = self._paused_s = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self.ready_at_ns, self._begun_at = time.time_ns(), time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Copy, where it is time, without the clock."""
        now = time.perf_counter()
        step = int(state.global_step)
        if step % self._every:
            return
        self.seconds[step] = now - self._begun_at - self._paused_s
        named = given["model"].named_parameters()
        self.copies[step] = {name: part.detach().clone() for name, part in named if part.requires_grad}
        self._paused_s += time.perf_counter() - now


def train(run: Run, *, threads: int) -> None:
    """Train and write what was copied."""
    torch.set_num_threads(threads)
    workload, _ = language_sections(run.config)
    reward = workload.rewards.functions[0]
    column = run.config.evaluation.answer_column
    rows = [
        {"prompt": row[workload.data.prompt_column], column: row[column]} for _, row in read_split(workload.data).train
    ]
    curve = Curve(run.config.strategy.checkpoint_freq)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(run.base, dtype=torch.float32, local_files_only=True),
        reward_funcs=load_function(reward.name, reward.arguments),
        args=arguments(run),
        train_dataset=Dataset.from_list(rows),
        processing_class=open_tokenizer(run.base),
        callbacks=[curve],
    )
    trainer.train()
    folder = run.folder / FOLDER
    folder.mkdir()
    for step, parameters in curve.copies.items():
        save_file(parameters, folder / f"step-{step}.safetensors")
    document = {"ready_at_ns": curve.ready_at_ns, "seconds": curve.seconds}
    (folder / "curve.json").write_text(json.dumps(document), encoding="utf-8")


def arguments(run: Run) -> GRPOConfig:
    """TRL's settings for the same optimiser steps: one update a batch, sampled from the parameters of that moment."""
    training = run.config.training
    workload, algorithm = language_sections(run.config)
    return GRPOConfig(
        output_dir=str(run.folder / "output"),
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_vllm=False,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,  # TRL turns it on by default; ours has it off, for speed.
        disable_dropout=True,
        seed=run.config.seed,
        max_steps=training.max_steps,
        per_device_train_batch_size=training.batch_size,
        gradient_accumulation_steps=1,
        num_iterations=1,
        num_generations=workload.group_size,
        max_completion_length=workload.sampling.max_new_tokens,
        temperature=workload.sampling.temperature,
        top_p=workload.sampling.top_p,
        top_k=workload.sampling.top_k,
        learning_rate=algorithm.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=algorithm.warmup_steps,
        weight_decay=algorithm.weight_decay,
        max_grad_norm=training.gradient_clip,
        loss_type=algorithm.loss,
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        beta=algorithm.kl_coef,
        scale_rewards="group",
    )


if __name__ == "__main__":
    train(Run.open(Path(sys.argv[1])), threads=int(sys.argv[2]))

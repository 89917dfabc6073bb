"""Texts from prompts, with nothing but a checkpoint's `policy/` folder: what a served model does."""

from collections.abc import Sequence
from typing import Any

import torch

from offbeat.config.language import DataConfig, SamplingConfig
from offbeat.errors import WorkloadError
from offbeat.workloads.language.engine import Request, TransformersEngine
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.prompts import given_prompt, is_prompt, token_ids

SEQUENCES = 32  # Decoded at once.


def answer(policy: LanguagePolicy, prompts: Sequence[Any]) -> list[str]:
    """One greedy completion per prompt (a text or a conversation); raises WorkloadError for what is neither."""
    settings = policy.settings
    sampling = SamplingConfig.model_validate(settings["sampling"])
    names = ("system_prompt", "chat_template", "chat_template_kwargs", "max_prompt_tokens")
    data = DataConfig.model_validate({name: settings[name] for name in names})
    engine = TransformersEngine(sampling, num_sequences=SEQUENCES, generator=torch.Generator(), greedy=True)
    for place, prompt in enumerate(prompts):
        if not is_prompt(prompt):
            got = type(prompt).__name__
            raise WorkloadError(
                f"prompt {place}: got a {got}, expected a text or a list of messages with role and content"
            )
        ids = token_ids(given_prompt(prompt, data.system_prompt), data, policy.tokenizer)
        engine.submit([Request(key=place, ids=ids[-data.max_prompt_tokens :])])
    texts: dict[int, str] = {}
    while engine.num_open:
        for completion in engine.advance(policy, 0):
            texts[completion.key] = policy.tokenizer.decode(completion.ids, skip_special_tokens=True)
    return [texts[place] for place in range(len(prompts))]

"""The engine: whatever is batched with a sequence, it is written as if it were alone, and scored as it was sampled."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from offbeat.config.language import SamplingConfig
from offbeat.workloads.language.columns import CUT, STOPPED
from offbeat.workloads.language.engine import Completion, Request, TransformersEngine
from offbeat.workloads.language.policy import LanguagePolicy
from offbeat.workloads.language.sampling import sampling_logprobs
from tests.unit.workloads.language.small_models import make_base, open_policy, reference_logprobs, run_config

MAX_NEW = 12
PROMPTS = [
    [20],
    [30, 31, 32],
    list(range(10, 70)),
    [7] * 150,
    [40, 41],
    [50, 9, 50, 9, 50],
    [99],
    list(range(80, 20, -3)),
]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguagePolicy:
    return open_policy(make_base(tmp_path_factory.mktemp("base"), request.param), run_config())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LanguagePolicy:
    return open_policy(make_base(tmp_path_factory.mktemp("base")), run_config())


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LanguagePolicy:
    return open_policy(make_base(tmp_path_factory.mktemp("base"), seed=9), run_config())


def _engine(*, num_sequences: int = 3, greedy: bool = False, seed: int = 0, **settings: Any) -> TransformersEngine:
    sampling = SamplingConfig(**{"max_new_tokens": MAX_NEW, **settings})
    generator = torch.Generator().manual_seed(seed)
    return TransformersEngine(sampling, num_sequences=num_sequences, generator=generator, greedy=greedy)


def _submitted(engine: TransformersEngine, prompts: Sequence[Sequence[int]] = PROMPTS) -> TransformersEngine:
    engine.submit([Request(key=key, ids=ids) for key, ids in enumerate(prompts)])
    return engine


def _written(engine: TransformersEngine, policy: LanguagePolicy) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while engine.num_open:
        found |= {completion.key: completion for completion in engine.advance(policy, 0)}
    return found


def _alone(policy: LanguagePolicy, prompt: Sequence[int], **settings: Any) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = policy.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=MAX_NEW,
        eos_token_id=sorted(policy.end_ids),
        pad_token_id=policy.tokenizer.pad_token_id,
        **settings,
    )
    written: list[int] = out[0, len(prompt) :].tolist()
    return written


def _common_token(policy: LanguagePolicy) -> int:
    """A token that greedy completions of several prompts hold, though not as their first."""
    texts = [_alone(policy, prompt) for prompt in PROMPTS]
    counts = {token: sum(token in text[1:] for text in texts) for text in texts for token in text}
    return max(counts, key=lambda token: counts[token])


@pytest.mark.parametrize("num_sequences", [1, 2, 3, 16])
def test_greedy_is_what_generate_writes_for_each_prompt_alone(policy: LanguagePolicy, num_sequences: int) -> None:
    found = _written(_submitted(_engine(num_sequences=num_sequences, greedy=True)), policy)
    assert {key: completion.ids for key, completion in found.items()} == {
        key: _alone(policy, prompt) for key, prompt in enumerate(PROMPTS)
    }


def test_greedy_with_ends_at_different_places_is_still_what_generate_writes(llama: LanguagePolicy) -> None:
    ending = LanguagePolicy(llama.model, llama.tokenizer)
    ending.end_ids = frozenset({_common_token(llama)})
    found = _written(_submitted(_engine(greedy=True)), ending)
    alone = {key: _alone(ending, prompt) for key, prompt in enumerate(PROMPTS)}
    assert {key: completion.ids for key, completion in found.items()} == alone
    assert len({len(ids) for ids in alone.values()}) > 2  # or nothing was shown
    for completion in found.values():
        ended = completion.ids[-1] in ending.end_ids
        assert completion.finish == (STOPPED if ended else CUT)
        assert ended or len(completion.ids) == MAX_NEW


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"temperature": 1.3, "top_k": 5, "top_p": 0.9}])
def test_recorded_logprobs_are_those_of_a_full_forward_pass(policy: LanguagePolicy, settings: dict[str, Any]) -> None:
    found = _written(_submitted(_engine(**settings)), policy)
    for key, prompt in enumerate(PROMPTS):
        completion = found[key]
        ids = torch.tensor([[*prompt, *completion.ids]])
        with torch.no_grad():
            logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        every = sampling_logprobs(logits, SamplingConfig(**settings))
        rescored = every.gather(-1, torch.tensor(completion.ids).unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(torch.tensor(completion.logprobs), rescored, rtol=1e-4, atol=1e-5)


def test_without_truncation_they_are_the_models_own(llama: LanguagePolicy) -> None:
    found = _written(_submitted(_engine(temperature=0.8)), llama)
    for key, prompt in enumerate(PROMPTS):
        expected = reference_logprobs(llama.model, prompt, found[key].ids, 0.8).float()
        torch.testing.assert_close(torch.tensor(found[key].logprobs), expected, rtol=1e-4, atol=1e-5)


def test_the_seed_decides_what_is_written(llama: LanguagePolicy) -> None:
    first, again, another = (_written(_submitted(_engine(seed=seed)), llama) for seed in (1, 1, 2))
    assert {key: part.ids for key, part in first.items()} == {key: part.ids for key, part in again.items()}
    assert {key: part.ids for key, part in first.items()} != {key: part.ids for key, part in another.items()}


def test_new_weights_between_steps(llama: LanguagePolicy, other: LanguagePolicy) -> None:
    engine = _submitted(_engine(num_sequences=16, greedy=True), PROMPTS[:3])
    steps: list[Completion] = []
    for step in range(MAX_NEW):
        # The fourth token is still drawn from logits that version 5 made at the third step.
        policy, version = (llama, 5) if step < 3 else (other, 6)
        steps += engine.advance(policy, version)
    assert len(steps) == 3
    for completion in steps:
        assert completion.versions == [5] * 4 + [6] * (MAX_NEW - 4)
    # The first four tokens are those of the first policy alone.
    assert [part.ids[:4] for part in steps] == [_alone(llama, prompt)[:4] for prompt in PROMPTS[:3]]


def test_each_token_is_scored_under_the_weights_that_its_version_names(
    llama: LanguagePolicy, other: LanguagePolicy
) -> None:
    engine = _submitted(_engine(num_sequences=1), [[20]])
    completion = next(part for step in range(MAX_NEW) for part in engine.advance((llama, other)[step >= 1], step >= 1))
    assert completion.versions[0] == completion.versions[1] == 0
    expected = reference_logprobs(llama.model, [20], completion.ids[:2]).float()
    torch.testing.assert_close(torch.tensor(completion.logprobs[:2]), expected, rtol=1e-4, atol=1e-5)


def test_never_more_at_once_than_there_are_places(llama: LanguagePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = LanguagePolicy(llama.model, llama.tokenizer)
    ending.end_ids = frozenset({_common_token(llama)})
    sizes: list[int] = []
    forward = llama.model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        sizes.append(len(kwargs["input_ids"]))
        return forward(*args, **kwargs)

    monkeypatch.setattr(llama.model, "forward", counted)
    engine = _submitted(_engine(num_sequences=3, greedy=True))
    finished: list[int] = []
    open_before = engine.num_open
    assert open_before == len(PROMPTS)
    while engine.num_open:
        done = engine.advance(ending, 0)
        finished += [completion.key for completion in done]
        assert engine.num_open == len(PROMPTS) - len(finished)
    assert sorted(finished) == list(range(len(PROMPTS)))
    assert max(sizes) == 3
    # Somebody who entered later left before somebody who entered first: nobody waits for the longest.
    assert finished != sorted(finished)


def test_stop_texts_end_a_completion(llama: LanguagePolicy) -> None:
    text = llama.tokenizer.decode(_alone(llama, PROMPTS[1]))
    stop = text[4:6]
    found = _written(_submitted(_engine(greedy=True, stop=(stop, "never this")), PROMPTS[1:2]), llama)[0]
    written = llama.tokenizer.decode(found.ids)
    assert written == text[: text.index(stop) + len(stop)]
    assert found.finish == STOPPED


def test_a_stop_text_of_many_tokens_a_character(llama: LanguagePolicy) -> None:
    # Eight characters of four byte tokens each: more tokens than a window of characters would hold.
    class OfBytes:
        eos_token_id = None

        def decode(self, ids: Sequence[int]) -> str:
            return bytes(ids).decode("utf-8", "replace")

    stop = "\U0001f600" * 8
    policy = LanguagePolicy(llama.model, OfBytes())
    engine = _engine(stop=(stop,), max_new_tokens=100)
    completion = Completion(key=0, ids=list(b"ab" + stop.encode()))
    assert engine._ends(completion, policy)
    assert not engine._ends(Completion(key=0, ids=completion.ids[:-1]), policy)


def test_the_longest_completion_is_cut_and_one_token_is_enough(llama: LanguagePolicy) -> None:
    found = _written(_submitted(_engine(greedy=True, max_new_tokens=1)), llama)
    assert [len(part.ids) for part in found.values()] == [1] * len(PROMPTS)
    assert {part.finish for part in found.values()} == {CUT}


def test_an_end_token_as_the_last_that_is_allowed_is_a_stop(llama: LanguagePolicy) -> None:
    ending = LanguagePolicy(llama.model, llama.tokenizer)
    ending.end_ids = frozenset({_alone(llama, PROMPTS[1])[2]})
    found = _written(_submitted(_engine(greedy=True, max_new_tokens=3), PROMPTS[1:2]), ending)[0]
    assert (len(found.ids), found.finish) == (3, STOPPED)


def test_clear_forgets_everything(llama: LanguagePolicy) -> None:
    engine = _submitted(_engine(greedy=True))
    engine.advance(llama, 0)
    engine.clear()
    assert engine.num_open == 0
    assert engine.advance(llama, 0) == []
    found = _written(_submitted(engine, PROMPTS[:2]), llama)
    assert found[1].ids == _alone(llama, PROMPTS[1])


def test_broken_weights_are_an_error_and_no_tokens(llama: LanguagePolicy, other: LanguagePolicy) -> None:
    good = other.weights()
    with torch.no_grad():
        next(iter(other.trained.values())).fill_(float("nan"))
    try:
        with pytest.raises(RuntimeError):
            _submitted(_engine()).advance(other, 0)
    finally:
        other.load_weights(good)

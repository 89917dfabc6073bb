"""The rollout on an engine and rewards that do what a test says: whole groups, honest versions, no overrun."""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from offbeat.config.language import LanguageConfig
from offbeat.errors import WorkloadError
from offbeat.rewards import RewardCombiner, RewardTable
from offbeat.trajectory import RecordHeaders, TrajectoryBatch, decode, encode, split_rows
from offbeat.workloads.language.columns import STOPPED, language_schema
from offbeat.workloads.language.engine import Completion, Request
from offbeat.workloads.language.prompts import Prompt
from offbeat.workloads.language.rollout import LanguageRollout
from offbeat.workloads.language.scoring import Scorer

DEADLINE_S = 20.0
GROUP = 3
PROMPTS = [
    Prompt(index=10 * n, given=f"p{n}", ids=(n, n + 1), columns={"answer": str(n), **({"level": n} if n else {})})
    for n in range(5)
]


class FakeEngine:
    """Writes token 100 + key; how long each completion gets is drawn by a seed of its own."""

    def __init__(self, *, places: int = 4, longest: int = 6, seed: int = 0) -> None:
        self.num_started = 0
        self.num_cleared = 0
        self.failure: Exception | None = None
        self.policies: list[Any] = []
        self._places, self._longest = places, longest
        self._random = np.random.default_rng(seed)
        self._waiting: deque[Request] = deque()
        self._running: list[tuple[Completion, int]] = []

    @property
    def num_open(self) -> int:
        return len(self._waiting) + len(self._running)

    def submit(self, requests: Sequence[Request]) -> None:
        self.num_started += len(requests)
        self._waiting.extend(requests)

    def clear(self) -> None:
        self.num_cleared += 1
        self._waiting.clear()
        self._running.clear()

    def advance(self, policy: Any, version: int) -> list[Completion]:
        self.policies.append(policy)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        while self._waiting and len(self._running) < self._places:
            key = self._waiting.popleft().key
            self._running.append((Completion(key=key), int(self._random.integers(1, self._longest + 1))))
        for completion, _ in self._running:
            completion.ids.append(100 + completion.key)
            completion.logprobs.append(-0.5)
            completion.versions.append(version)
        done = [part for part, length in self._running if len(part.ids) == length]
        self._running = [(part, length) for part, length in self._running if len(part.ids) < length]
        return done


class FakeRewards:
    """One reward a completion: its length, or what `value` says; waits for `gate`."""

    def __init__(self, value: Callable[[int], float] = float, *, overlaps: bool = False) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.overlaps = overlaps
        self.asked: list[Mapping[str, Any]] = []
        self.closed = False
        self._value = value

    def score(self, **given: Any) -> RewardTable:
        self.asked.append(given)
        if not self.gate.wait(DEADLINE_S):
            raise TimeoutError("the test did not open the gate")
        values = np.array([[self._value(len(ids)), math.nan] for ids in given["completion_ids"]])
        return RewardTable(values=values, faults={"nan": len(values)})

    def close(self) -> None:
        self.closed = True


class FakeTokenizer:
    def batch_decode(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(map(str, row)) for row in rows]


class Setting:
    """A rollout with its fakes."""

    def __init__(
        self, *, num_groups: int = 2, ahead: int = 0, in_flight: bool = False, overlaps: bool = False, **engine: Any
    ) -> None:
        self.engine = FakeEngine(**engine)
        self.rewards = FakeRewards(overlaps=overlaps)
        self.config = LanguageConfig(group_size=GROUP, num_groups=num_groups, in_flight_updates=in_flight)
        self.ahead = ahead
        self.version = 0
        self.rollout = self.made(seed=0)

    def made(self, *, seed: int, prompts: Sequence[Prompt] = PROMPTS) -> LanguageRollout:
        scorer = Scorer(self.rewards, RewardCombiner([1.0, 1.0]), FakeTokenizer())  # type: ignore[arg-type]
        return LanguageRollout(
            self.config, prompts, language_schema(), engine=self.engine, scorer=scorer, seed=seed, ahead=self.ahead
        )

    def collect(self) -> TrajectoryBatch:
        return self.rollout.collect(f"policy {self.version}", self.version)  # type: ignore[arg-type]

    def newer(self) -> tuple[int, Any]:
        self.version += 1
        return self.version, f"policy {self.version}"


@pytest.fixture
def made() -> Iterator[Callable[..., Setting]]:
    settings: list[Setting] = []

    def make(**given: Any) -> Setting:
        settings.append(Setting(**given))
        return settings[-1]

    yield make
    for setting in settings:
        setting.rewards.gate.set()
        setting.rollout.close()


def _lists(batch: TrajectoryBatch, name: str) -> list[list[Any]]:
    values, offsets = batch.ragged(name)
    return [part.tolist() for part in np.split(values, offsets[1:-1])]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.001)


def _check_groups(batch: TrajectoryBatch) -> None:
    ids = batch.numpy("group_id").reshape(-1, GROUP)
    assert (ids == ids[:, :1]).all()  # contiguous
    assert len(set(ids[:, 0].tolist())) == len(ids)
    assert (batch.numpy("group_size") == GROUP).all()
    for name in ("prompt_index", "min_version", "max_version", "finished_at_ns"):
        shared = batch.numpy(name).reshape(-1, GROUP)
        assert (shared == shared[:, :1]).all(), name
    versions = _lists(batch, "token_versions")
    for row, number in enumerate(ids[:, 0]):
        members = range(row * GROUP, (row + 1) * GROUP)
        every = [version for member in members for version in versions[member]]
        assert (min(every), max(every)) == (batch.min_version[members[0]], batch.numpy("max_version")[members[0]])
        for member in members:
            assert set(_lists(batch, "completion_ids")[member]) == {100 + int(number)}


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("in_flight", [False, True])
def test_groups_stay_whole_and_versions_never_go_backwards(
    made: Callable[..., Setting], in_flight: bool, ahead: int, overlaps: bool
) -> None:
    setting = made(ahead=ahead, in_flight=in_flight, overlaps=overlaps, places=5)
    seen: list[int] = []
    highest = [0]
    for _ in range(12):
        setting.version += 1
        newest = setting.newer if in_flight or setting.version % 2 else None
        batch = setting.rollout.collect("policy", setting.version, newest)  # type: ignore[arg-type]
        assert len(batch) == 2 * GROUP
        _check_groups(batch)
        seen += batch.numpy("group_id")[::GROUP].tolist()
        highest += batch.numpy("max_version").tolist()
    assert len(set(seen)) == len(seen)
    assert highest == sorted(highest)


def test_a_batch_fits_the_log_and_its_contract(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=6, in_flight=True)
    batch = setting.rollout.collect("policy", 0, setting.newer)  # type: ignore[arg-type]
    parts = split_rows(batch, max_bytes=400, align=GROUP)
    assert len(parts) > 1
    for part in parts:
        named = {"run_id": "r", "generator": 0, "incarnation": 1, "sequence": 0, "created_at_ns": 1}
        headers, payload = encode(part, **named)  # type: ignore[arg-type]
        opened = decode(RecordHeaders.parse(headers), payload, language_schema())
        assert str(opened.data.to_pylist()) == str(part.data.to_pylist())  # as texts: NaN is not itself
        assert len(part) % GROUP == 0


def test_everything_of_a_completion_stands_in_its_row(made: Callable[..., Setting]) -> None:
    batch = made().collect()
    by_index = {prompt.index: prompt for prompt in PROMPTS}
    for row, (ids, logprobs, rewards) in enumerate(
        zip(*(_lists(batch, name) for name in ("completion_ids", "logprobs", "rewards")), strict=True)
    ):
        prompt = by_index[int(batch.numpy("prompt_index")[row])]
        assert tuple(_lists(batch, "prompt_ids")[row]) == prompt.ids
        assert logprobs == [-0.5] * len(ids)
        assert rewards[0] == len(ids)  # the fake reward
        assert math.isnan(rewards[1])
        assert batch.numpy("reward")[row] == len(ids)  # a missing one is left out of the sum
        assert batch.numpy("finish")[row] == STOPPED


def test_rewards_are_asked_with_prompts_texts_ids_and_columns(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=5)
    setting.collect()
    for asked in setting.rewards.asked:
        assert set(asked) == {"prompts", "completions", "completion_ids", "columns"}
        for place, given in enumerate(asked["prompts"]):
            n = int(given[1:])
            assert asked["columns"]["answer"][place] == str(n)
            assert asked["completions"][place] == " ".join(map(str, asked["completion_ids"][place]))
            if "level" in asked["columns"]:
                assert asked["columns"]["level"][place] == (n or None)
    assert sum(len(asked["prompts"]) for asked in setting.rewards.asked) == 5 * GROUP


def test_a_conversation_gets_messages_back(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=1)
    messages = [{"role": "user", "content": "hi"}]
    rollout = setting.made(seed=0, prompts=[Prompt(index=0, given=messages, ids=(1,), columns={})])
    rollout.collect("policy", 0)  # type: ignore[arg-type]
    asked = setting.rewards.asked[0]
    assert asked["prompts"] == [messages] * GROUP
    assert asked["columns"] == {}
    assert [list(given[0]) for given in asked["completions"]] == [["role", "content"]] * GROUP
    rollout.close()


def test_every_prompt_comes_once_before_any_comes_again(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=5, places=100)
    indices = [setting.collect().numpy("prompt_index")[::GROUP].tolist() for _ in range(3)]
    assert all(sorted(epoch) == [0, 10, 20, 30, 40] for epoch in indices)
    assert indices[0] != indices[1]


def test_the_seed_decides_the_order_of_prompts() -> None:
    orders = []
    for seed in (1, 1, 2):
        setting = Setting(num_groups=5, places=100, longest=1)
        rollout = setting.made(seed=seed)
        orders.append(rollout.collect("policy", 0).numpy("prompt_index").tolist())  # type: ignore[arg-type]
        rollout.close()
        setting.rollout.close()
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("in_flight", [False, True])
def test_without_ahead_no_more_prompts_are_begun_than_were_asked_for(
    made: Callable[..., Setting], in_flight: bool
) -> None:
    setting = made(in_flight=in_flight, places=100)
    for number in range(1, 6):
        setting.collect()
        assert setting.engine.num_started == number * 2 * GROUP
        assert setting.engine.num_open == 0


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("in_flight", [False, True])
def test_with_ahead_writing_goes_on_while_rewards_are_waited_for(
    made: Callable[..., Setting], in_flight: bool, overlaps: bool
) -> None:
    setting = made(num_groups=1, ahead=2, in_flight=in_flight, overlaps=overlaps, places=100)
    setting.rollout._reach = 3
    setting.rewards.gate.clear()
    found: list[TrajectoryBatch] = []
    thread = threading.Thread(target=lambda: found.append(setting.collect()))
    thread.start()
    try:
        _until(lambda: setting.engine.num_started == 3 * GROUP and setting.engine.num_open == 0)
        assert not found
    finally:
        setting.rewards.gate.set()
        thread.join(DEADLINE_S)
    assert len(found[0]) == GROUP
    assert len(setting.rewards.asked) >= (3 if overlaps else 1)
    for number in range(2, 8):
        setting.collect()
        assert setting.engine.num_started <= (number + 2) * GROUP


@pytest.mark.parametrize("in_flight", [False, True])
def test_no_more_is_begun_than_admission_was_asked_for(made: Callable[..., Setting], in_flight: bool) -> None:
    setting = made(num_groups=2, ahead=5, in_flight=in_flight, places=4)
    assert setting.rollout.num_trajectories == 2 * GROUP
    for number in range(12):
        asked = setting.rollout.num_trajectories
        assert 2 * GROUP <= asked <= 7 * GROUP
        setting.collect()
        assert setting.engine.num_started <= number * 2 * GROUP + asked


def test_slow_rewards_make_it_reach_further_each_time(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=1, ahead=5, places=100)
    started = 0
    for expected in (1, 2, 4, 6, 6):
        assert setting.rollout.num_trajectories == expected * GROUP
        setting.rewards.gate.clear()
        thread = threading.Thread(target=setting.collect)
        thread.start()
        started += expected * GROUP
        try:
            _until(lambda: setting.engine.num_started == started)  # noqa: B023
        finally:
            setting.rewards.gate.set()
            thread.join(DEADLINE_S)
        setting.rollout._forget()  # Each call begins from nothing.


def test_fast_rewards_leave_nothing_to_be_ahead_of(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=2, ahead=50, places=100)
    setting.rollout._reach = 7
    for number, expected in enumerate((7, 6, 5, 4, 3, 2, 2)):
        assert setting.rollout.num_trajectories == expected * GROUP, number
        setting.rollout._adapt_reach(0.01)


def test_new_weights_wait_until_nothing_is_being_written(made: Callable[..., Setting]) -> None:
    setting = made(ahead=3, places=2)
    for _ in range(8):
        setting.version += 1
        batch = setting.rollout.collect(f"policy {setting.version}", setting.version, setting.newer)  # type: ignore[arg-type]
        assert all(len(set(versions)) == 1 for versions in _lists(batch, "token_versions"))
        assert (batch.min_version == batch.numpy("max_version")).all()


def test_in_flight_updates_are_taken_at_once(made: Callable[..., Setting]) -> None:
    setting = made(in_flight=True, places=2, longest=6)
    batch = setting.rollout.collect("policy", 0, setting.newer)  # type: ignore[arg-type]
    for versions in _lists(batch, "token_versions"):
        assert versions == list(range(versions[0], versions[0] + len(versions)))
    assert setting.engine.policies == [f"policy {n + 1}" for n in range(len(setting.engine.policies))]
    assert (batch.min_version < batch.numpy("max_version")).any()


@pytest.mark.parametrize("failure", [RuntimeError("CUDA error"), ValueError("bad"), IndexError("out of range")])
def test_a_failing_engine_is_a_typed_error_and_the_next_call_starts_afresh(
    made: Callable[..., Setting], failure: Exception
) -> None:
    setting = made(ahead=2, places=2)
    while setting.collect().numpy("group_id").max() < 4:
        pass
    setting.rollout._ready.clear()  # or a call might be answered without any writing
    begun = setting.engine.num_started // GROUP
    setting.engine.failure = failure
    with pytest.raises(WorkloadError, match=f"writing completions failed: {type(failure).__name__}: {failure}"):
        setting.collect()
    assert setting.engine.num_cleared == 1
    assert setting.engine.num_open == 0
    batch = setting.collect()
    _check_groups(batch)
    assert batch.numpy("group_id").min() >= begun


def test_rewards_of_forgotten_groups_reach_no_other(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=1, ahead=1, places=GROUP, longest=4)
    setting.rollout._reach = 2
    setting.rewards.gate.clear()
    found: list[BaseException] = []

    def collect() -> None:
        try:
            setting.collect()
        except WorkloadError as error:
            found.append(error)

    # The first group is being scored when the engine fails on the second.
    rewards_asked = threading.Event()
    score, advance = setting.rewards.score, setting.engine.advance

    def asked(**given: Any) -> RewardTable:
        rewards_asked.set()
        return score(**given)

    def failing(policy: Any, version: int) -> list[Completion]:
        if rewards_asked.is_set():
            raise RuntimeError("lost")
        return advance(policy, version)

    setting.rewards.score = asked  # type: ignore[method-assign]
    setting.engine.advance = failing  # type: ignore[method-assign]
    while not found:
        setting.rewards.gate.set() if rewards_asked.is_set() else None
        collect()
    setting.engine.advance = advance  # type: ignore[method-assign]
    setting.rewards.gate.set()
    batch = setting.collect()
    _check_groups(batch)
    lengths = [len(ids) for ids in _lists(batch, "completion_ids")]
    assert batch.numpy("reward").tolist() == lengths


def test_unknown_rewards_reach_their_column_and_are_counted(made: Callable[..., Setting]) -> None:
    setting = made()
    setting.rewards._value = lambda length: math.nan if length > 3 else 1.0
    batch = setting.collect()
    lengths = [len(ids) for ids in _lists(batch, "completion_ids")]
    unknown = [math.isnan(reward) for reward in batch.numpy("reward").tolist()]
    assert unknown == [length > 3 for length in lengths]
    assert any(unknown)
    assert Counter(setting.rollout.faults) == {"nan": len(batch)}


def test_completions_of_length_zero_are_carried(made: Callable[..., Setting]) -> None:
    setting = made(num_groups=1)
    rollout = setting.rollout
    setting.engine.advance = lambda *_: [Completion(key=0) for _ in range(GROUP)]  # type: ignore[method-assign]
    batch = rollout.collect("policy", 7)  # type: ignore[arg-type]
    assert _lists(batch, "completion_ids") == [[]] * GROUP
    assert batch.min_version.tolist() == batch.numpy("max_version").tolist() == [7] * GROUP
    assert batch.numpy("reward").tolist() == [0.0] * GROUP


def test_closing_ends_the_rewards(made: Callable[..., Setting]) -> None:
    setting = made()
    setting.collect()
    setting.rollout.close()
    assert setting.rewards.closed

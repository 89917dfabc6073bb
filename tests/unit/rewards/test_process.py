"""Rewards that misbehave cost themselves, are counted, and nothing else."""

import os
import sys
import time

import numpy as np
import psutil
import pytest

from offbeat.errors import ConfigError
from offbeat.rewards import RewardProcess

MODULE = """
import asyncio, os, sys, time

def ones(completions, **columns):
    print("password=hunter2")
    return [1.0 for _ in completions]

def columns(prompts, completions, completion_ids, answer, **rest):
    return [len(p) + len(c) + len(i) + a for p, c, i, a in zip(prompts, completions, completion_ids, answer)]

async def later(completions, **columns):
    await asyncio.sleep(0.01)
    return [2 for _ in completions]

def raises(completions, **columns):
    raise ValueError("token=s3cret")

def leaves(completions, **columns):
    sys.exit(3)

def dies(completions, **columns):
    os._exit(9)

def hangs(completions, **columns):
    time.sleep(3600)

def mixed(completions, **columns):
    return [None, float("nan"), float("inf"), 0.5]

def short(completions, **columns):
    return [1.0]

def text(completions, **columns):
    return ["good" for _ in completions]

def digits(completions, **columns):
    return "1" * len(completions)

def quoted(completions, **columns):
    return ["1.5" for _ in completions]

def lacks(completions, reference, **columns):
    return [1.0 for _ in completions]

async def lacks_async(completions, reference, **columns):
    return [1.0 for _ in completions]

POOL = []

def pooled(completions, **columns):
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    POOL.append(ProcessPoolExecutor(1, mp_context=get_context("fork")))
    return [float(value) for value in POOL[-1].map(len, completions)]

def forks(completions, **columns):
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(1)

def reads(completions, **columns):
    return [float(len(sys.stdin.read())) for _ in completions]
"""


@pytest.fixture(autouse=True)
def rewards_module(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(MODULE)
    (tmp_path / "broken_rewards.py").write_text("raise RuntimeError('key=s3cret')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.fixture
def scored(tmp_path):
    opened = []

    def score(*names, timeout_s=60.0, count=4):
        process = RewardProcess(
            [(f"my_rewards:{name}", {}) for name in names], timeout_s=timeout_s, output=tmp_path / "rewards.log"
        )
        opened.append(process)
        return process, ask(process, count)

    yield score
    for process in opened:
        process.close()


def workers_alive():
    """Every rewards' process of this machine, what they have forked among them."""
    found = psutil.process_iter(["cmdline"])
    return {process for process in found if "offbeat.rewards.worker" in (process.info["cmdline"] or ())}


def ask(process, count=4):
    return process.score(
        prompts=["ab"] * count,
        completions=["xyz"] * count,
        completion_ids=[[1, 2]] * count,
        columns={"answer": [10] * count},
    )


def test_functions_get_what_trl_gives_them(scored):
    _, table = scored("columns", "later", "ones")
    np.testing.assert_array_equal(table.values, [[17.0, 2.0, 1.0]] * 4)
    assert table.faults == {}


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("raises", {"exception": 4}),
        ("leaves", {"exception": 4}),
        ("text", {"exception": 4}),
        ("digits", {"exception": 4}),
        ("quoted", {"exception": 4}),
        ("short", {"wrong_length": 4}),
    ],
)
def test_a_failing_function_costs_itself_alone(scored, name, faults):
    process, table = scored(name, "ones")
    assert np.isnan(table.values[:, 0]).all()
    np.testing.assert_array_equal(table.values[:, 1], 1.0)
    assert table.faults == faults
    np.testing.assert_array_equal(ask(process).values[:, 1], 1.0)


def test_none_nan_and_infinity_cost_their_own_completion(scored):
    _, table = scored("mixed")
    np.testing.assert_array_equal(table.values[:, 0], [np.nan, np.nan, np.nan, 0.5])
    assert table.faults == {"none": 1, "nan": 1, "infinity": 1}


def test_a_hang_is_ended_and_the_next_batch_gets_a_new_process(scored):
    # Long enough for the other function to answer on a busy machine.
    process, table = scored("hangs", "ones", timeout_s=5.0)
    assert np.isnan(table.values[:, 0]).all()
    np.testing.assert_array_equal(table.values[:, 1], 1.0)
    assert table.faults == {"timeout": 4}
    np.testing.assert_array_equal(ask(process).values[:, 1], 1.0)


def test_a_death_is_counted_and_mended(scored):
    process, table = scored("dies")
    assert table.faults == {"died": 4}
    assert ask(process).faults == {"died": 4}


@pytest.mark.parametrize("name", ["lacks", "lacks_async"])
def test_a_reward_that_takes_other_arguments_is_told_which(scored, caplog, name):
    _, table = scored(name)
    assert table.faults == {"exception": 4}
    assert "missing a required argument: 'reference'; it is given answer, completion_ids, completions" in caplog.text


def test_a_reward_with_processes_of_its_own_leaves_none(scored):
    before = workers_alive()
    process, table = scored("pooled")
    np.testing.assert_array_equal(table.values[:, 0], 3.0)
    started = workers_alive() - before
    assert len(started) >= 2
    process.close()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


def test_the_death_of_a_process_that_has_forked_is_noticed(scored):
    before = workers_alive()
    process, table = scored("forks")
    assert table.faults == {"died": 4}
    process.close()
    _, alive = psutil.wait_procs(workers_alive() - before, timeout=30)
    assert alive == []


def test_what_rewards_print_and_raise_stays_in_their_own_file(scored, tmp_path, capfd, caplog):
    scored("ones", "raises")
    seen = "".join(capfd.readouterr()) + caplog.text
    assert "hunter2" not in seen
    assert "s3cret" not in seen
    assert "raised ValueError at my_rewards.py:" in caplog.text
    kept = (tmp_path / "rewards.log").read_text()
    assert "hunter2" in kept
    assert (tmp_path / "rewards.log").stat().st_mode & 0o777 == 0o600


def test_a_reward_that_reads_standard_input_gets_nothing(scored):
    _, table = scored("reads", "ones")
    np.testing.assert_array_equal(table.values, [[0.0, 1.0]] * 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_rewards:f", "no module 'nowhere_rewards'"),
        ("my_rewards:nothing", "has no function 'nothing'"),
        ("broken_rewards:f", "importing broken_rewards raised RuntimeError"),
    ],
)
def test_what_cannot_be_loaded_is_a_configuration_error(tmp_path, name, message):
    process = RewardProcess([(name, {})], timeout_s=60, output=tmp_path / "rewards.log")
    with pytest.raises(ConfigError, match=message) as caught:
        process.start()
    assert "s3cret" not in str(caught.value)


def test_emoji_right_to_left_and_nul_arrive_unchanged(tmp_path):
    texts = ["🙂", "שלום", "a\x00b", "\ud800"]
    process = RewardProcess([("exact_match", {})], timeout_s=60, output=tmp_path / "rewards.log")
    table = process.score(prompts=texts, completions=texts, completion_ids=[[]] * 4, columns={"answer": texts})
    process.close()
    np.testing.assert_array_equal(table.values[:, 0], 1.0)


def test_no_process_is_left_behind(scored):
    process, _ = scored("ones")
    mine = psutil.Process(os.getpid())
    workers = [child for child in mine.children() if "offbeat.rewards.worker" in " ".join(child.cmdline())]
    assert workers
    process.close()
    deadline = time.monotonic() + 10
    while any(worker.is_running() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(worker.is_running() for worker in workers)

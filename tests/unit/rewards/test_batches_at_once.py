"""Several batches asked at once: async rewards overlap, and what one batch breaks costs no other."""

import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from offbeat.rewards import RewardProcess

DEADLINE_S = 60.0
MODULE = """
import asyncio, functools, os, threading, time
from pathlib import Path

HERE = Path(__file__).parent
inside, most, meeting = 0, 0, asyncio.Event()

async def meet(completions, **columns):
    global inside
    inside += 1
    if inside == 3:
        meeting.set()
    await meeting.wait()
    return [float(c) for c in completions]

class Judge:
    async def __call__(self, completions, scale, **columns):
        return [scale * float(c) for c in completions]

judge = Judge()

def one_at_a_time(completions, **columns):
    global inside, most
    inside += 1
    most = max(most, inside)
    time.sleep(0.01)
    inside -= 1
    return [float(most) for _ in completions]

def _asked(completions):
    with (HERE / "asked").open("a") as file:
        file.write(f"{completions[0]} ")

def _wait_for(number):
    while len((HERE / "asked").read_text().split()) < number:
        time.sleep(0.001)

async def gets_stuck(completions, **columns):
    _asked(completions)
    if completions[0] == "2":
        await asyncio.Event().wait()
    return [float(c) for c in completions]

async def blocks(completions, **columns):
    _asked(completions)
    if completions[0] == "2":
        time.sleep(3600)
    await asyncio.sleep(0)
    return [float(c) for c in completions]

def hangs(completions, **columns):
    if completions[0] == "2":
        time.sleep(3600)
    return [float(c) for c in completions]

async def dies(completions, **columns):
    _asked(completions)
    while len((HERE / "asked").read_text().split()) < 4:
        await asyncio.sleep(0.001)
    if completions[0] == "2":
        os._exit(9)
    return [float(c) for c in completions]

async def leaves(completions, **columns):
    if completions[0] == "2":
        await asyncio.gather(_leave())
    return [float(c) for c in completions]

async def _leave():
    raise SystemExit(3)

async def never(completions, **columns):
    _asked(completions)
    await asyncio.Event().wait()
"""


@pytest.fixture(autouse=True)
def rewards_module(tmp_path, monkeypatch):
    (tmp_path / "at_once.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.fixture
def opened(tmp_path):
    found = []

    def opening(*names, timeout_s=60.0, **arguments):
        functions = [(f"at_once:{name}", arguments) for name in names]
        found.append(RewardProcess(functions, timeout_s=timeout_s, output=tmp_path / "rewards.log"))
        found[-1].start()
        return found[-1]

    yield opening
    for process in found:
        process.close()


def ask(process, number):
    return process.score(
        prompts=["p"] * 2, completions=[str(number)] * 2, completion_ids=[[1]] * 2, columns={"answer": [0] * 2}
    )


def ask_at_once(process, count):
    """The tables of batches 0 .. count - 1."""
    with ThreadPoolExecutor(count) as pool:
        return [asked.result(DEADLINE_S) for asked in [pool.submit(ask, process, n) for n in range(count)]]


def check_only_batch_2_is_lost(tables, fault):
    for number, table in enumerate(tables):
        expected = np.nan if number == 2 else number
        np.testing.assert_array_equal(table.values[:, 0], [expected] * 2, err_msg=f"batch {number}")
        assert table.faults == ({fault: 2} if number == 2 else {})


def test_batches_of_an_async_reward_are_waited_for_together(opened):
    process = opened("meet")
    assert process.overlaps
    # Each waits inside the reward until all three are there.
    tables = ask_at_once(process, 3)
    assert [table.values[:, 0].tolist() for table in tables] == [[0.0] * 2, [1.0] * 2, [2.0] * 2]


def test_a_callable_object_with_arguments_is_known_as_async(opened):
    process = opened("judge", scale=3.0)
    assert process.overlaps
    assert ask(process, 2).values[:, 0].tolist() == [6.0, 6.0]


def test_batches_of_a_plain_reward_stay_one_at_a_time(opened):
    process = opened("one_at_a_time")
    assert not process.overlaps
    assert [table.values[0, 0] for table in ask_at_once(process, 5)] == [1.0] * 5


def test_an_async_reward_that_does_not_answer_costs_its_batch_and_no_process(opened, tmp_path):
    tables = ask_at_once(opened("gets_stuck", timeout_s=2.0), 4)
    check_only_batch_2_is_lost(tables, "timeout")
    assert sorted((tmp_path / "asked").read_text().split()) == ["0", "1", "2", "3"]  # nothing was asked twice


def test_an_async_reward_that_blocks_its_loop_is_found_out(opened, monkeypatch):
    monkeypatch.setattr("offbeat.rewards.life.GRACE_S", 0.5)
    check_only_batch_2_is_lost(ask_at_once(opened("blocks", timeout_s=2.0), 4), "timeout")


def test_a_hang_costs_no_batch_that_waits_behind_it(opened):
    check_only_batch_2_is_lost(ask_at_once(opened("hangs", timeout_s=3.0), 6), "timeout")


def test_a_death_costs_the_batch_that_dies_again_alone(opened, tmp_path):
    tables = ask_at_once(opened("dies"), 4)
    check_only_batch_2_is_lost(tables, "died")


def test_a_system_exit_in_a_task_of_an_async_reward_is_an_exception(opened):
    process = opened("leaves")
    check_only_batch_2_is_lost(ask_at_once(process, 4), "exception")
    assert ask(process, 5).faults == {}


def test_time_begins_when_those_before_have_been_answered(opened, tmp_path):
    process = opened("hangs", "one_at_a_time", timeout_s=3.0)
    tables = ask_at_once(process, 8)
    check_only_batch_2_is_lost(tables, "timeout")
    assert not any(np.isnan(table.values[:, 1]).any() for table in tables)


def test_closing_lets_go_of_those_who_wait(opened, tmp_path, caplog):
    process = opened("never")
    found: Future = Future()
    thread = threading.Thread(target=lambda: found.set_result(ask(process, 0)))
    thread.start()
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.close()
    table = found.result(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert np.isnan(table.values).all()
    assert table.faults == {}
    assert caplog.text == ""

"""Processes killed with SIGKILL at random moments: the account stays exact, every step repeats bit for bit."""

import random
import time

import pytest

from offbeat.ledger import read_account
from offbeat.lifecycle.provisioning import prepare_run
from offbeat.runs import Run
from offbeat.trainer.replay import replay
from tests.sides import Sides, language_config, small_config


def kill_at_random(sides: Sides, run: Run, *, kills: int, seed: int) -> None:
    """Kill generators and trainer one after the other, each at a random moment, and start them again."""
    chance = random.Random(seed)
    for _ in range(kills):
        sides.wait_for_steps(run, at_least=read_account(run).steps + 1)
        time.sleep(chance.uniform(0.0, 0.5))  # the random moment itself, not a synchronisation
        generators = [f"generator-{index}" for index in range(run.config.generator.num_generators)]
        role = chance.choice(["trainer", "trainer", *generators])
        sides.kill(role)
        assert read_account(run).difference == 0
        sides.start(role)


def check_everything(run: Run) -> None:
    account = read_account(run)
    assert account.difference == 0
    assert account.steps == run.config.training.max_steps
    assert account.trained == sum(run.config.training.batch_size for _ in range(run.config.training.max_steps)), (
        "no trajectory twice, none skipped"
    )
    report = replay(run)
    assert report.divergences == ()
    assert report.steps == account.steps


def test_three_kills(tmp_path):
    run = Run.create(small_config(max_steps=60), run_id="killed", home=tmp_path)
    with Sides(run) as sides:
        sides.start_all()
        kill_at_random(sides, run, kills=3, seed=1)
        sides.wait_until_done(run)
    check_everything(run)


@pytest.mark.chaos
@pytest.mark.timeout(1500)
def test_twenty_kills(tmp_path):
    run = Run.create(small_config(max_steps=600), run_id="killed", home=tmp_path)
    with Sides(run) as sides:
        sides.start_all()
        kill_at_random(sides, run, kills=20, seed=7)
        sides.wait_until_done(run)
    check_everything(run)


@pytest.mark.chaos
@pytest.mark.timeout(1500)
def test_ten_kills_of_a_language_run(tmp_path):
    pytest.importorskip("trl", reason="the extra `language` is not installed")
    run = Run.create(language_config(max_steps=100), run_id="killed", home=tmp_path)
    prepare_run(run)
    with Sides(run) as sides:
        sides.start_all()
        kill_at_random(sides, run, kills=10, seed=3)
        sides.wait_until_done(run)
    check_everything(run)

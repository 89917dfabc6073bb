"""A language model through the pipeline of control: processes, log, ledger, kills, replay, evaluation, serving."""

import pytest

from offbeat.evaluation import evaluate_policy
from offbeat.ledger import read_account
from offbeat.lifecycle.provisioning import prepare_run
from offbeat.lifecycle.sampling import sample_trajectories
from offbeat.quality import trajectory_frame, validate
from offbeat.runs import Run
from offbeat.trainer.checkpoint import newest_valid, verify
from offbeat.trainer.replay import replay
from offbeat.workloads.serving import _load_pyfunc
from tests.sides import Sides, language_config

pytest.importorskip("trl", reason="the extra `language` is not installed")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run whose trainer and whose generator were each killed once, and that ended by itself."""
    run = Run.create(language_config(), run_id="sums", home=tmp_path_factory.mktemp("language"))
    baseline = prepare_run(run)
    with Sides(run) as sides:
        sides.start_all()
        sides.wait_for_steps(run, at_least=2)
        for role in ("trainer", "generator-0"):
            sides.kill(role)
            sides.start(role)
        sides.wait_until_done(run)
    return run, baseline


def test_the_account_is_exact_and_every_step_repeats(finished):
    run, _ = finished
    account = read_account(run)
    assert (account.difference, account.steps, account.trained) == (0, 12, 12 * 32)
    report = replay(run)
    assert (report.steps, report.divergences) == (12, ())


def test_a_checkpoint_opens_with_transformers_and_is_scored(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, baseline = finished
    checkpoint = newest_valid(run.checkpoints)
    assert verify(checkpoint.folder) == []
    model = AutoModelForCausalLM.from_pretrained(checkpoint.folder / "policy")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder / "policy")
    assert model.config.vocab_size == len(tokenizer)
    scores = evaluate_policy(run, checkpoint.folder)
    assert scores.name == "accuracy"
    assert len(scores.values) == len(scores.samples) == 15  # as many as there are
    assert {"reward_mean", "pass_at_1", "pass_at_2", "bleu_mean"} <= scores.extras.keys()
    assert 0 <= scores.extras["pass_at_1"] <= scores.extras["pass_at_2"] <= 1
    assert 0 <= baseline["accuracy_mean"] <= 1
    assert baseline["warm_up_steps"] == 30


def test_the_served_model_answers_prompts(finished):
    run, _ = finished
    model = _load_pyfunc(str(newest_valid(run.checkpoints).folder / "policy"))
    answers = model.predict(["1+1=", "2+3="])
    assert len(answers) == 2
    assert all(isinstance(answer, str) for answer in answers)


def test_sampled_completions_pass_their_suite(finished, tmp_path):
    run, _ = finished
    report = validate(trajectory_frame(sample_trajectories(run, limit=64)), "language", tmp_path)
    assert report.success, report.failed

"""How far generators may run ahead: the rule by hand, one grant after the other."""

import threading

from offbeat.service import ProgressRequest
from offbeat.trainer.admission import Admission


def request(wanted=4, *, generator=0, incarnation=1, version=0, produced=0, patience_s=0.0):
    return ProgressRequest(
        generator=generator,
        incarnation=incarnation,
        version=version,
        produced=produced,
        wanted=wanted,
        patience_s=patience_s,
    )


def admission(max_staleness=1, *, batch_size=8, waiting=0, version=0, seen=None):
    made = Admission(epoch=3, max_staleness=max_staleness)
    made.update(waiting=waiting, batch_size=batch_size, seen=seen or {})
    made.advance(step=version, version=version)
    return made


def test_grants_until_staleness_plus_one_batches_are_ahead():
    gate = admission(1, batch_size=8)
    granted = [gate.answer(request(produced=0, generator=g)).granted for g in range(5)]
    assert granted == [4, 4, 4, 4, 0]  # 2 batches of 8 are 4 wishes of 4


def test_waiting_trajectories_take_room():
    assert admission(1, waiting=13).answer(request()).granted == 0
    assert admission(1, waiting=12).answer(request()).granted == 4


def test_synchronous_run_waits_for_the_step():
    gate = admission(0, batch_size=4)
    assert gate.answer(request()).granted == 4
    assert gate.answer(request(generator=1)).granted == 0
    gate.update(waiting=4, batch_size=4, seen={"0/1": 4})  # it arrived and is being trained on
    assert gate.answer(request(produced=4)).granted == 4
    gate.update(waiting=0, batch_size=4, seen={"0/1": 4})
    gate.advance(step=1, version=1)
    assert gate.answer(request(produced=4, version=1)).granted == 8


def test_generator_behind_in_versions_gets_one_batch_less_each():
    gate = admission(2, batch_size=4, version=5, waiting=7)
    assert gate.answer(request(version=5)).granted == 4  # limit 12
    assert admission(2, batch_size=4, version=5, waiting=7).answer(request(version=4)).granted == 0  # limit 8


def test_same_wish_is_not_granted_twice():
    gate = admission(0, batch_size=4)
    assert gate.answer(request()).granted == 4
    assert gate.answer(request()).granted == 4


def test_wish_above_the_limit_is_granted_to_a_starving_trainer():
    assert admission(0, batch_size=4).answer(request(wanted=64)).granted == 64
    assert admission(0, batch_size=4, waiting=4).answer(request(wanted=64)).granted == 0


def test_new_incarnation_gives_the_old_grants_back():
    gate = admission(0, batch_size=4)
    assert gate.answer(request(incarnation=1)).granted == 4
    assert gate.answer(request(incarnation=2)).granted == 4
    assert gate.answer(request(incarnation=1)).granted == 0


def test_answer_waits_for_room():
    gate = admission(0, batch_size=4, waiting=4)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(gate.answer(request(patience_s=30.0))))
    thread.start()
    gate.update(waiting=0, batch_size=4, seen={})
    thread.join(20)
    assert answers[0].granted == 4


def test_answer_comes_at_once_with_a_newer_version():
    gate = admission(0, batch_size=4, waiting=4, version=2)
    answer = gate.answer(request(version=1, patience_s=30.0))
    assert (answer.version, answer.granted, answer.epoch) == (2, 0, 3)


def test_everyone_hears_the_end():
    gate = admission()
    gate.advance(step=9, version=9, finished=True)
    assert gate.answer(request(version=9, wanted=0, patience_s=30.0)).finished

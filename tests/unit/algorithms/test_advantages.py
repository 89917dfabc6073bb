"""Advantage normalisation."""

import torch

from offbeat.algorithms.advantages import normalize


def test_mean_and_deviation_are_those_of_the_trained_slots():
    scaled = normalize(torch.tensor([1.0, 3.0, 1000.0]), torch.tensor([1.0, 1.0, 0.0]))
    assert scaled[:2].tolist() == [-1.0, 1.0]


def test_equal_advantages_become_zero():
    assert normalize(torch.full((4,), 2.5), torch.ones(4)).tolist() == [0.0] * 4


def test_no_trained_slot_is_no_error():
    assert torch.isfinite(normalize(torch.tensor([1.0, 2.0]), torch.zeros(2))).all()

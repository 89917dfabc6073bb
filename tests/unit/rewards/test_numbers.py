from fractions import Fraction

import pytest

from offbeat.rewards.numbers import last_number, parse_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", Fraction(42)),
        ("the answer is 1,234,567.", Fraction(1234567)),
        ("$1000.50 in all", Fraction(2001, 2)),
        ("first 3, then -7", Fraction(-7)),
        ("5-3", Fraction(3)),
        ("3/4 of it", Fraction(3, 4)),
        ("12.5%", Fraction(1, 8)),
        ("1e3", Fraction(1000)),
        ("−8", Fraction(-8)),  # the minus sign of typography
        ("x = .5", Fraction(1, 2)),
        ("version v2", None),
        ("1/0", None),
        ("", None),
        ("no number here", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_a_number_of_a_million_digits_is_none():
    assert last_number("9" * 1_000_000) is None


@pytest.mark.parametrize(
    ("text", "number"), [("1,000.0", Fraction(1000)), ("abc", None), ("", None), ("1/3", Fraction(1, 3))]
)
def test_parse_number(text, number):
    assert parse_number(text) == number

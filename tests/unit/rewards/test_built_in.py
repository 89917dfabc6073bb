import pytest

from offbeat.errors import ConfigError
from offbeat.rewards import load_function


def score(name, arguments=None, **given):
    return load_function(name, arguments or {})(**given)


def test_accuracy_compares_numbers_whatever_their_form():
    got = score("accuracy", completions=["so 1,000", "it is 999.", "none"], answer=["1000.0", 1000, "1000"])
    assert got == [1.0, 0.0, 0.0]


def test_accuracy_of_words_ignores_case_and_white_space():
    assert score("accuracy", completions=["  New \n york"], answer=["new york"]) == [1.0]


def test_a_row_without_a_reference_has_no_reward():
    assert score("accuracy", completions=["1"], answer=[None]) == [None]
    assert score("exact_match", completions=["1"], answer=[None]) == [None]


def test_chat_messages_count_by_their_last_content():
    completion = [{"role": "assistant", "content": "7"}]
    assert score("exact_match", completions=[completion], answer=["7"]) == [1.0]


def test_format_wants_the_whole_completion():
    got = score("format", {"pattern": r"<a>.*</a>"}, completions=["<a>x\ny</a>", "<a>x</a> and more"])
    assert got == [1.0, 0.0]


def test_length_falls_in_a_straight_line():
    ids = [[0] * 10, [0] * 20, [0] * 15, [0] * 40]
    assert score("length", {"target": 10, "limit": 20}, completion_ids=ids) == [1.0, 0.0, 0.5, 0.0]


def test_keyword_is_the_share_found():
    assert score("keyword", {"keywords": ["Red", "blue"]}, completions=["a red ball", "RED and BLUE", ""]) == [
        0.5,
        1.0,
        0.0,
    ]


def test_bleu_and_chrf_of_the_reference_itself_are_1():
    for name in ("bleu", "chrf"):
        same, other, none = score(
            name, completions=["the cat sat on the mat", "zzz", "x"], answer=["the cat sat on the mat"] * 2 + [None]
        )
        assert same == pytest.approx(1.0)
        assert other == pytest.approx(0.0, abs=0.02)
        assert none is None


def test_an_unknown_name_names_the_known_ones():
    with pytest.raises(ConfigError, match="'acuracy', expected one of accuracy, exact_match"):
        load_function("acuracy", {})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("accuracy", {"zzz": 1}, r"got arguments \['zzz'\], expected none at all"),
        ("format", {}, r"got arguments \[\], expected pattern"),
        ("format", {"pattern": "(("}, r"pattern: got '\(\('; .*no regular expression: missing \)"),
        ("format", {"pattern": 3}, "pattern: got 3; Input should be a valid string"),
        ("length", {"target": 5}, r"got arguments \['target'\], expected target, limit"),
        ("length", {"target": 5, "limit": "9"}, "limit: got '9'; Input should be a valid integer"),
        ("keyword", {"keywords": "red"}, "keywords: got 'red'; 'str' instances are not allowed"),
        ("keyword", {"keywords": []}, r"keywords: got \[\]; Value should have at least 1 item"),
    ],
)
def test_wrong_arguments_are_said_before_anything_runs(name, arguments, said):
    with pytest.raises(ConfigError, match=said):
        load_function(name, arguments)

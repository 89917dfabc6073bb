"""Made problems: right, none twice, the same for the same seed, plain and as chat messages."""

import pytest

from offbeat.workloads.language.arithmetic import problems, questions


@pytest.mark.parametrize("make", [problems, questions])
def test_every_problem_once_in_the_seeds_order(make: object) -> None:
    assert callable(make)
    rows = make(largest=3, operations="+-")
    assert len({str(row["prompt"]) for row in rows}) == len(rows) == 2 * 4 * 4
    assert make(largest=3, operations="+-") == rows
    assert make(largest=3, operations="+-", seed=1) != rows
    assert make(largest=3, operations="+-", count=5) == rows[:5]


def test_problems_are_solved() -> None:
    solved = {row["prompt"]: row["answer"] for row in problems(largest=12, operations="+-*")}
    assert (solved["12+7="], solved["3-5="], solved["11*12="]) == ("19", "-2", "132")
    padded = {row["prompt"]: row for row in problems(largest=12, padded=True)}
    assert padded["12+07="] == {"prompt": "12+07=", "answer": "19", "completion": "019"}


def test_questions_are_chat_messages() -> None:
    asked = {row["prompt"][0]["content"]: row for row in questions()}
    assert len(asked) == 100
    assert asked["What is 3 + 4? Answer with the number only."] == {
        "prompt": [{"role": "user", "content": "What is 3 + 4? Answer with the number only."}],
        "answer": "7",
    }
    (other,) = questions(count=1, largest=0, wording="{problem} is")
    assert other["prompt"] == [{"role": "user", "content": "0 + 0 is"}]

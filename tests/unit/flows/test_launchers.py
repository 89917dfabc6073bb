"""How endings and Prefect states translate into each other."""

import pytest
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Running, Scheduled

from flows.child import state_of
from flows.launchers import ending_of
from flows.supervisor import Ending, Outcome


@pytest.mark.parametrize("outcome", ["finished", "refused", "failed", "cancelled", "killed"])
def test_an_ending_survives_the_way_through_prefect(outcome: Outcome) -> None:
    ending = Ending(outcome=outcome, detail="why")
    assert ending_of(state_of(ending)) == ending


@pytest.mark.parametrize("state", [Scheduled(), Running(), Cancelling()])
def test_a_state_that_is_not_final_is_no_ending(state: object) -> None:
    assert ending_of(state) is None  # type: ignore[arg-type]


def test_states_of_endings_are_truthful() -> None:
    kinds = {o: state_of(Ending(outcome=o)).type for o in ("finished", "failed", "cancelled", "killed")}  # type: ignore[arg-type]
    assert kinds == {
        "finished": Completed().type,
        "failed": Failed().type,
        "cancelled": Cancelled().type,
        "killed": Crashed().type,
    }

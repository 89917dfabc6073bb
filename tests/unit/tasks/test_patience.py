"""Which failures are tried again."""

import pytest
from prefect.client.schemas.objects import State, StateType

from offbeat.errors import (
    CheckpointError,
    ConfigError,
    LogUnavailable,
    RegistryError,
    RegistryUnavailable,
    StoreUnavailable,
)
from tasks.patience import service_was_away


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (RegistryUnavailable("away"), True),
        (StoreUnavailable("away"), True),
        (LogUnavailable("away"), True),
        (RegistryError("no such model"), False),
        (CheckpointError("damaged"), False),
        (ConfigError("wrong"), False),
        (ValueError("a bug"), False),
    ],
)
def test_only_a_service_that_may_come_back_is_worth_waiting_for(error: Exception, again: bool) -> None:
    state = State[object](type=StateType.FAILED, data=error)
    assert service_was_away(None, None, state) is again  # type: ignore[arg-type]

"""Which failures of a task are worth another attempt: those of services that may come back, and no others."""

from typing import Any, TypedDict

from prefect.cache_policies import NO_CACHE, CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import RetryConditionCallable, Task

from offbeat.errors import LogUnavailable, RegistryUnavailable, StoreUnavailable

WORTH_RETRYING = (LogUnavailable, RegistryUnavailable, StoreUnavailable)


class Once(TypedDict):
    """Options of a task whose result is handed on in memory and never looked up."""

    cache_policy: CachePolicy
    persist_result: bool


class Patient(Once):
    """Options of a task that waits for a service to come back."""

    retries: int
    retry_delay_seconds: list[float]
    retry_condition_fn: RetryConditionCallable


def service_was_away(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether the task failed because a log, store or registry did not answer."""
    return isinstance(state.data, WORTH_RETRYING)


ONCE = Once(cache_policy=NO_CACHE, persist_result=False)
PATIENT = Patient(**ONCE, retries=4, retry_delay_seconds=[1.0, 5.0, 20.0, 60.0], retry_condition_fn=service_was_away)

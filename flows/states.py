"""Reading and correcting Prefect states from outside a run, when the API answers; its absence is an answer too."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Crashed

# What calls raise while the API is away; Prefect wraps some of it in RuntimeError("Failed to reach API at ...").
API_AWAY = (httpx.HTTPError, PrefectException, RuntimeError, OSError)
TIMEOUT_S = 10.0
POLL_S = 1.0

logger = logging.getLogger(__name__)


@contextmanager
def impatient() -> Iterator[None]:
    """API calls inside the block fail at once, where Prefect would otherwise try again for a minute."""
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: TIMEOUT_S}):
        yield


@contextmanager
def impatient_client() -> Iterator[SyncPrefectClient]:
    """A client whose calls fail at once while the API is away (see API_AWAY)."""
    with impatient(), get_client(sync_client=True) as client:
        yield client


def api_answers() -> bool:
    """Whether the API is there now."""
    try:
        with impatient_client() as client:
            return client.api_healthcheck() is None
    except API_AWAY:
        return False


def read_run(flow_run_id: UUID) -> FlowRun | None:
    """A flow run as the API knows it; None while the API is away."""
    try:
        with impatient_client() as client:
            return client.read_flow_run(flow_run_id)
    except API_AWAY:
        return None


def settle(flow_run_id: UUID, state: State) -> bool:
    """Give a run that cannot speak for itself its state, unless it has a final one; False while the API is away."""
    try:
        with impatient_client() as client:
            known = client.read_flow_run(flow_run_id).state
            if known is None or not known.is_final():
                client.set_flow_run_state(flow_run_id, state, force=True)
    except API_AWAY:
        return False
    return True


def name_run(flow_run_id: UUID, name: str) -> None:
    """Give a flow run its name; while the API is away it keeps the old one."""
    try:
        with impatient_client() as client:
            client.update_flow_run(flow_run_id, name=name)
    except API_AWAY as error:
        logger.warning("the flow run could not be named %s: %s", name, error)


def settle_abandoned(name: str, *, successor: UUID) -> int:
    """Call crashed what an earlier life of a run left unfinished: flow runs of this name, and their children.

    For a parent that died together with its server nobody else could say so. Returns how many there were; 0 while the
    API is away.
    """
    try:
        with impatient_client() as client:
            found = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))
    except API_AWAY:
        return 0
    former = [run for run in found if run.id != successor and (run.state is None or not run.state.is_final())]
    for run in former:
        for dead in (*unfinished_children(run.id), run):
            settle(dead.id, Crashed(message=f"its process ended without a word; flow run {successor} goes on"))
    return len(former)


def await_api(*, patience_s: float = 600.0) -> bool:
    """Wait until the API answers, so that a run's last word arrives; False when it stays away for longer."""
    deadline = time.monotonic() + patience_s
    while not api_answers():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def unfinished_children(flow_run_id: UUID) -> Sequence[FlowRun]:
    """Subflow runs without a final state; raises one of API_AWAY."""
    parent = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run_id]))
    with impatient_client() as client:
        found = client.read_flow_runs(flow_run_filter=parent)
    return [run for run in found if run.state is None or not run.state.is_final()]

"""Where generators find the trainer, and learn that training is done: two small objects in the store.

service.json     address of the living trainer's policy service, and its epoch
finished.json    whether all steps are trained
"""

import json
from dataclasses import dataclass

from offbeat.errors import ObjectNotFound, StoreUnavailable
from offbeat.store import Store

SERVICE_KEY = "service.json"
FINISHED_KEY = "finished.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """The trainer's policy service, as its newest epoch announced it."""

    address: str
    epoch: int


def announce_service(store: Store, service: ServiceAddress) -> None:
    """Say where the policy service is."""
    store.put(SERVICE_KEY, json.dumps({"address": service.address, "epoch": service.epoch}).encode())


def find_service(store: Store) -> ServiceAddress | None:
    """The address last announced; None before the first, or while the store is away."""
    try:
        return ServiceAddress(**json.loads(store.get(SERVICE_KEY)))
    except (ObjectNotFound, StoreUnavailable):
        return None


def mark_finished(store: Store, finished: bool) -> None:
    """Say whether training is done; a run resumed with more steps takes it back."""
    store.put(FINISHED_KEY, json.dumps({"finished": finished}).encode())


def is_finished(store: Store) -> bool:
    """Whether training is done; False while the store is away."""
    try:
        return bool(json.loads(store.get(FINISHED_KEY))["finished"])
    except (ObjectNotFound, StoreUnavailable):
        return False

"""Policy versions: encoding, the double buffer, the publisher and its fence."""

import threading

import pytest
import torch

from offbeat.errors import Fenced
from offbeat.policy import LATEST, DoubleBuffer, PolicyPublisher, decode_weights, encode_weights, newest_in_store
from offbeat.store import open_store


class Loaded:
    def __init__(self):
        self.weights = None

    def load_weights(self, weights):
        self.weights = weights


def weights(value):
    return {"w": torch.full((3,), float(value))}


@pytest.fixture
def store(tmp_path):
    opened = open_store("local", root=tmp_path / "store")
    yield opened
    opened.close()


def test_weights_come_back_with_their_version():
    version, found = decode_weights(encode_weights(7, weights(2)))
    assert version == 7
    assert torch.equal(found["w"], torch.full((3,), 2.0))


def test_acting_policy_does_not_change_until_the_swap():
    buffer = DoubleBuffer(Loaded)
    buffer.offer(0, weights(0))
    version, acting = buffer.swap()
    buffer.offer(1, weights(1))
    assert (version, acting.weights["w"][0].item(), buffer.newest) == (0, 0.0, 1)
    version, swapped = buffer.swap()
    assert (version, swapped.weights["w"][0].item()) == (1, 1.0)
    assert swapped is not acting


def test_older_version_never_replaces_a_newer_one():
    buffer = DoubleBuffer(Loaded)
    buffer.offer(5, weights(5))
    buffer.offer(4, weights(4))
    assert buffer.swap()[0] == 5


def test_waiting_for_a_version_ends_when_it_is_offered():
    buffer = DoubleBuffer(Loaded)
    found = []
    thread = threading.Thread(target=lambda: found.append(buffer.wait_for(2, 30.0)))
    thread.start()
    buffer.offer(2, weights(2))
    thread.join(20)
    assert found == [True]
    assert not buffer.wait_for(3, 0.0)


def test_published_version_is_in_memory_at_once_and_in_the_store_at_the_end(store):
    publisher = PolicyPublisher(store, epoch=1)
    for version in range(6):
        publisher.publish(version, weights(version))
    data = publisher.get(5)
    assert data is not None
    assert decode_weights(data)[0] == 5
    assert publisher.get(0) is None
    publisher.close()
    found = newest_in_store(store)
    assert found is not None
    assert found[0] == 5
    assert len(list(store.list("policy/0"))) <= 2


def test_zombie_cannot_move_the_pointer(store):
    newer = PolicyPublisher(store, epoch=2)
    newer.publish(3, weights(3))
    newer.close()
    zombie = PolicyPublisher(store, epoch=1)
    zombie.publish(9, weights(9))
    zombie.close()
    found = newest_in_store(store)
    assert found is not None
    assert found[0] == 3
    with pytest.raises(Fenced, match="epoch 2"):
        zombie.publish(10, weights(10))


def test_empty_store_has_no_version(store):
    assert newest_in_store(store) is None
    assert store.head(LATEST) is None

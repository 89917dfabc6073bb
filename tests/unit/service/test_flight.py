"""The policy service: answers, refusals, deaths and returns."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offbeat.errors import NotReady, ServiceUnavailable
from offbeat.service import PolicyClient, PolicyServer, Progress, ProgressRequest

TIMEOUT_S = 20.0
WEIGHTS = {0: b"", 1: b"one", 2: bytes(range(256)) * (64 << 12), 3: b"x" * ((4 << 20) + 1)}
REQUEST = ProgressRequest(generator=1, incarnation=7, version=3, produced=100, wanted=64, patience_s=0.5)


def answer(request: ProgressRequest) -> Progress:
    return Progress(epoch=1, step=2, version=request.version, granted=request.produced + request.wanted, finished=False)


@pytest.fixture
def serve() -> Iterator[Callable[..., PolicyServer]]:
    servers: list[PolicyServer] = []

    def start(**changes: Any) -> PolicyServer:
        arguments = {"host": "127.0.0.1", "port": 0, "progress": answer, "weights": WEIGHTS.get, **changes}
        servers.append(PolicyServer(**arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., PolicyClient]]:
    clients: list[PolicyClient] = []

    def start(address: str, timeout_s: float = TIMEOUT_S) -> PolicyClient:
        clients.append(PolicyClient(address, timeout_s=timeout_s))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


Serve = Callable[..., PolicyServer]
Connect = Callable[..., PolicyClient]


def progress_when_back(client: PolicyClient) -> Progress:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return client.progress(REQUEST)
        except ServiceUnavailable:
            if time.monotonic() > deadline:
                raise


def test_importing_the_package_does_not_load_grpc() -> None:
    code = "import sys, offbeat.service; sys.exit('pyarrow.flight' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_progress_goes_there_and_back(serve: Serve, connect: Connect) -> None:
    seen: list[ProgressRequest] = []
    server = serve(progress=lambda request: seen.append(request) or answer(request))
    client = connect(server.address)
    assert client.progress(REQUEST) == Progress(epoch=1, step=2, version=3, granted=164, finished=False)
    assert seen == [REQUEST]


@pytest.mark.parametrize("version", WEIGHTS)
def test_weights_of_any_size_arrive_whole(serve: Serve, connect: Connect, version: int) -> None:
    assert connect(serve().address).weights(version) == WEIGHTS[version]


def test_an_unknown_version_is_unavailable_and_named(serve: Serve, connect: Connect) -> None:
    with pytest.raises(ServiceUnavailable, match="version 9"):
        connect(serve().address).weights(9)


def test_callbacks_that_raise_fail_their_call_and_nothing_else(serve: Serve, connect: Connect) -> None:
    def progress(request: ProgressRequest) -> Progress:
        if request.wanted == 0:
            raise RuntimeError("no wish")
        return answer(request)

    def weights(version: int) -> bytes | None:
        if version == 5:
            raise KeyError("five")
        return WEIGHTS.get(version)

    client = connect(serve(progress=progress, weights=weights).address)
    nothing_wanted = ProgressRequest(generator=0, incarnation=0, version=0, produced=0, wanted=0, patience_s=0.0)
    for _ in range(3):
        with pytest.raises(ServiceUnavailable, match="no wish"):
            client.progress(nothing_wanted)
        with pytest.raises(ServiceUnavailable, match="five"):
            client.weights(5)
    assert client.progress(REQUEST).granted == 164
    assert client.weights(1) == b"one"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b"\xff",
        b'{"generator": "1", "incarnation": 7, "version": 3, "produced": 1, "wanted": 1, "patience_s": 0}',
        b'{"generator": true, "incarnation": 7, "version": 3, "produced": 1, "wanted": 1, "patience_s": 0}',
        b'{"generator": 1, "incarnation": 7, "version": 3, "produced": 1, "wanted": 1, "patience_s": NaN}',
        b'{"generator": 1, "incarnation": 7, "version": 3, "produced": 1, "wanted": 1, "patience_s": 0, "more": 1}',
    ],
)
def test_a_malformed_request_reaches_no_callback(serve: Serve, connect: Connect, body: bytes) -> None:
    from pyarrow import ArrowException, flight

    seen: list[ProgressRequest] = []
    server = serve(progress=lambda request: seen.append(request) or answer(request))
    with flight.FlightClient(server.address) as stranger, pytest.raises(ArrowException):
        list(stranger.do_action(flight.Action("progress", body)))
    assert seen == []
    assert connect(server.address).progress(REQUEST).granted == 164


def test_strange_actions_and_tickets_are_refused(serve: Serve) -> None:
    from pyarrow import ArrowException, flight

    with flight.FlightClient(serve().address) as stranger:
        with pytest.raises(ArrowException, match="expected 'progress'"):
            list(stranger.do_action(flight.Action("shutdown", b"")))
        with pytest.raises(ArrowException):
            stranger.do_get(flight.Ticket(b"../../etc/passwd")).read_all()


def test_a_port_in_use_is_named(serve: Serve) -> None:
    port = serve().port
    with pytest.raises(NotReady, match=f"127.0.0.1 port {port}: .*in use"):
        serve(port=port)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(NotReady, match=f"{port}: .*in use"):
            serve(port=port)


def test_an_address_that_is_not_ours_is_not_ready(serve: Serve) -> None:
    with pytest.raises(NotReady, match=r"192\.0\.2\.1"):
        serve(host="192.0.2.1")


def test_all_interfaces_are_served_under_a_reachable_address(serve: Serve, connect: Connect) -> None:
    server = serve(host="0.0.0.0")
    assert "0.0.0.0" not in server.address
    assert connect(server.address).weights(1) == b"one"


def test_nobody_there_is_unavailable(connect: Connect) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = connect(f"grpc://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ServiceUnavailable):
            client.progress(REQUEST)
        with pytest.raises(ServiceUnavailable):
            client.weights(1)


def test_no_address_at_all_is_unavailable() -> None:
    with pytest.raises(ServiceUnavailable, match="nonsense"):
        PolicyClient("nonsense", timeout_s=1.0)


def test_a_server_that_never_answers_times_out(serve: Serve, connect: Connect) -> None:
    released = threading.Event()

    def progress(request: ProgressRequest) -> Progress:
        released.wait(TIMEOUT_S)
        return answer(request)

    server = serve(progress=progress)
    impatient = ProgressRequest(generator=1, incarnation=7, version=3, produced=100, wanted=64, patience_s=0.0)
    try:
        with pytest.raises(ServiceUnavailable, match=r"[Tt]imeout|[Dd]eadline"):
            connect(server.address, 0.2).progress(impatient)
    finally:
        released.set()


def test_a_patient_request_may_wait_longer_than_the_timeout(serve: Serve, connect: Connect) -> None:
    def progress(request: ProgressRequest) -> Progress:
        threading.Event().wait(0.4)
        return answer(request)

    patient = ProgressRequest(generator=1, incarnation=7, version=3, produced=100, wanted=64, patience_s=TIMEOUT_S)
    assert connect(serve(progress=progress).address, 0.1).progress(patient).granted == 164


def test_a_waiting_request_holds_up_no_other(serve: Serve, connect: Connect) -> None:
    released = threading.Event()

    def progress(request: ProgressRequest) -> Progress:
        if request.generator == 1:
            released.wait(TIMEOUT_S)
        return answer(request)

    server = serve(progress=progress)
    waiting = [threading.Thread(target=connect(server.address).progress, args=(REQUEST,)) for _ in range(8)]
    for thread in waiting:
        thread.start()
    other = ProgressRequest(generator=0, incarnation=0, version=0, produced=0, wanted=1, patience_s=0.0)
    assert connect(server.address).progress(other).granted == 1
    assert all(thread.is_alive() for thread in waiting)
    released.set()
    for thread in waiting:
        thread.join()


def test_a_client_finds_a_server_that_came_back_at_its_address(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address)
    client.progress(REQUEST)
    server.close()
    with pytest.raises(ServiceUnavailable):
        client.progress(REQUEST)
    serve(port=server.port)
    assert progress_when_back(client).granted == 164
    assert client.weights(1) == b"one"


def test_a_killed_server_is_unavailable_and_its_port_can_be_taken(serve: Serve, connect: Connect) -> None:
    code = (
        "import sys\n"
        "from offbeat.service import PolicyServer, Progress\n"
        "answer = Progress(epoch=0, step=0, version=0, granted=1, finished=False)\n"
        "server = PolicyServer(host='127.0.0.1', port=0, progress=lambda _: answer, weights=lambda _: None)\n"
        "print(server.port, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            client = connect(f"grpc://127.0.0.1:{port}")
            assert client.progress(REQUEST).granted == 1
        finally:
            child.send_signal(signal.SIGKILL)
    with pytest.raises(ServiceUnavailable):
        client.progress(REQUEST)
    serve(port=port)
    assert progress_when_back(client).granted == 164


def test_close_twice_frees_the_port(serve: Serve) -> None:
    server = serve()
    server.close()
    server.close()
    assert serve(port=server.port).port == server.port


def test_close_does_not_wait_for_ever(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.service.flight.CLOSE_TIMEOUT_S", 0.2)
    entered, released = threading.Event(), threading.Event()

    def progress(request: ProgressRequest) -> Progress:
        entered.set()
        released.wait(TIMEOUT_S)
        return answer(request)

    server = serve(progress=progress)
    caller = threading.Thread(target=connect(server.address).progress, args=(REQUEST,))
    caller.start()
    assert entered.wait(TIMEOUT_S)
    server.close()
    assert caller.is_alive()
    released.set()
    caller.join()


def test_a_closed_client_is_unavailable(serve: Serve, connect: Connect) -> None:
    client = connect(serve().address)
    client.close()
    client.close()
    with pytest.raises(ServiceUnavailable):
        client.progress(REQUEST)


def test_large_weights_are_not_copied_to_be_sent() -> None:
    from offbeat.service.flight import _table

    data = os.urandom(9 << 20)
    column = _table(data).column(0)
    assert [len(chunk) for chunk in column.chunks] == [4 << 20, 4 << 20, 1 << 20]
    starts = [chunk.buffers()[1].address for chunk in column.chunks]
    assert [start - starts[0] for start in starts] == [0, 4 << 20, 8 << 20]
    assert b"".join(column.chunk(i).to_numpy() for i in range(3)) == data

import socket
import threading

import httpx
import pytest

from offbeat.errors import NotReady
from offbeat.telemetry import GeneratorMetrics, Health, StatusServer, TrainerMetrics

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def serve(**changes):
    options = {
        "title": "trainer",
        "health": lambda: Health(ok=True),
        "metrics": TrainerMetrics(),
        "status": lambda: {"step": 3},
    }
    return StatusServer("127.0.0.1", 0, **(options | changes))


@pytest.fixture
def server():
    running = serve()
    yield running
    running.close()


def test_healthy_answers_200(server):
    answer = httpx.get(f"{server.url}/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_unhealthy_answers_503_with_the_reason():
    server = serve(health=lambda: Health(ok=False, reason="no progress for 130 s"))
    answer = httpx.get(f"{server.url}/healthz")
    server.close()
    assert (answer.status_code, answer.json()) == (503, {"status": "unhealthy", "reason": "no progress for 130 s"})


def test_metrics_are_openmetrics_to_prometheus(server):
    answer = httpx.get(f"{server.url}/metrics", headers={"Accept": PROMETHEUS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert "offbeat_policy_version 0.0" in answer.text
    assert answer.text.endswith("# EOF\n")


def test_metrics_are_plain_text_to_who_asks_for_it(server):
    answer = httpx.get(f"{server.url}/metrics", headers={"Accept": "text/plain"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert "# TYPE offbeat_training_loss gauge" in answer.text


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/plain, */*"])
def test_metrics_are_json_to_everybody_else(server, accept):
    answer = httpx.get(f"{server.url}/metrics", headers={"Accept": accept})
    assert {"training_loss", "samples_per_second", "trajectory_age"} <= answer.json().keys()


def test_status_and_page(server):
    assert httpx.get(f"{server.url}/api/v1/status").json() == {"step": 3}
    page = httpx.get(f"{server.url}/")
    assert page.headers["content-type"].startswith("text/html")
    assert 'href="/metrics"' in page.text


def test_a_generator_has_no_status_and_no_page():
    server = serve(metrics=GeneratorMetrics(), status=None)
    codes = [httpx.get(f"{server.url}{path}").status_code for path in ("/healthz", "/metrics", "/api/v1/status", "/")]
    server.close()
    assert codes == [200, 200, 404, 404]


def test_a_callback_that_raises_answers_500_and_the_server_goes_on():
    answers = iter([ZeroDivisionError("no steps yet"), None])

    def status():
        fault = next(answers)
        if fault:
            raise fault
        return {"step": 1}

    server = serve(status=status)
    first, second = (httpx.get(f"{server.url}/api/v1/status") for _ in range(2))
    server.close()
    assert (first.status_code, first.json()["reason"]) == (500, "ZeroDivisionError: no steps yet")
    assert (second.status_code, second.json()) == (200, {"step": 1})


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotReady, match=rf"HTTP port {port} on 127\.0\.0\.1 is in use"):
            StatusServer("127.0.0.1", port, title="x", health=lambda: Health(ok=True), metrics=TrainerMetrics())


def test_an_address_of_another_machine_is_named():
    with pytest.raises(NotReady, match=r"HTTP port 0 on 203\.0\.113\.7 cannot be opened"):
        StatusServer("203.0.113.7", 0, title="x", health=lambda: Health(ok=True), metrics=TrainerMetrics())


def test_close_frees_the_port_at_once_even_with_clients_connected():
    server = serve()
    with httpx.Client() as keeps_alive, socket.create_connection(("127.0.0.1", server.port)):
        keeps_alive.get(f"{server.url}/healthz")
        server.close()
        socket.create_server(("127.0.0.1", server.port)).close()
    server.close()
    assert not any(thread.name == f"http-{server.port}" for thread in threading.enumerate())


def test_slow_clients_and_slow_callbacks_hold_up_nobody():
    release = threading.Event()
    server = serve(status=lambda: {"released": release.wait(30)})
    half_a_request = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for connection in half_a_request:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
    waiting = threading.Thread(target=httpx.get, args=(f"{server.url}/api/v1/status",), kwargs={"timeout": 30})
    waiting.start()
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    release.set()
    waiting.join(30)
    for connection in half_a_request:
        connection.close()
    server.close()


def test_a_fault_of_the_client_is_answered_and_forgotten(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert connection.recv(1024).startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{server.url}/healthz").status_code == 200

"""The HTTP endpoint of a process: health, metrics and status, served by a thread beside the work.

    GET /healthz         200, or 503 with the reason
    GET /metrics         Prometheus text to a client that asks for text, JSON to any other
    GET /api/v1/status   what the process says of itself
    GET /                a page that links to these

The thread only ever reads. A callback that raises answers 500 and leaves the server running; callbacks run in worker
threads, so a slow one, or a slow client, holds up nobody else.
"""

import errno
import html
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from offbeat.errors import NotReady
from offbeat.telemetry.negotiation import wants_text

if TYPE_CHECKING:
    from starlette.applications import Starlette

CLOSE_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a process is well, and if not, why."""

    ok: bool
    reason: str = ""


class MetricsSource(Protocol):
    """Numbers in both of their forms; TrainerMetrics and GeneratorMetrics are such."""

    def exposition(self, accept: str) -> tuple[str, bytes]:
        """(content type, body) in the Prometheus format that the Accept header prefers."""

    def snapshot(self) -> Mapping[str, float | int | None]:
        """The numbers as a flat JSON object."""


class StatusServer:
    """Serves from construction to `close`. Port 0 takes a free one.

    Without `status` there is neither a status route nor a page. Raises NotReady, naming the port, when it cannot be
    opened.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        title: str,
        health: Callable[[], Health],
        metrics: MetricsSource,
        status: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        import uvicorn

        self._socket = _bind(host, port)
        self.host = host
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            _application(title, health, metrics, status),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name=f"http-{self.port}", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Address that a client on this machine, or for a wildcard address on the network, can open."""
        host = socket.gethostname() if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def close(self) -> None:
        """Stop serving and free the port. Safe to call twice."""
        # New connections end now, whatever the thread is doing; the rest gets a second to finish.
        self._server.should_exit = True
        self._thread.join(CLOSE_DEADLINE_S)
        self._socket.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = (
            "is in use by another process; choose another, or 0 for a free one"
            if taken
            else f"cannot be opened: {error}"
        )
        raise NotReady(f"HTTP port {port} on {host or 'all addresses'} {reason}") from error


def _application(
    title: str, health: Callable[[], Health], metrics: MetricsSource, status: Callable[[], Mapping[str, Any]] | None
) -> "Starlette":
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    def answer_health(request: Request) -> Response:
        found = health()
        body = {"status": "ok"} if found.ok else {"status": "unhealthy", "reason": found.reason}
        return JSONResponse(body, status_code=200 if found.ok else 503)

    def answer_metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        if not wants_text(accept):
            return JSONResponse(dict(metrics.snapshot()), headers={"Vary": "Accept"})
        content_type, body = metrics.exposition(accept)
        return Response(body, headers={"Content-Type": content_type, "Vary": "Accept"})

    def answer_status(request: Request) -> Response:
        return JSONResponse(dict(status()) if status else {})

    def answer_page(request: Request) -> Response:
        return HTMLResponse(_page(title))

    def answer_fault(request: Request, error: Exception) -> Response:
        return JSONResponse({"status": "error", "reason": f"{type(error).__name__}: {error}"}, status_code=500)

    routes = [Route("/healthz", answer_health), Route("/metrics", answer_metrics)]
    if status is not None:
        routes += [Route("/api/v1/status", answer_status), Route("/", answer_page)]
    return Starlette(routes=routes, exception_handlers={Exception: answer_fault})


def _page(title: str) -> str:
    name = html.escape(title)
    links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in ("/healthz", "/metrics", "/api/v1/status"))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>'
    return f"{head}<h1>{name}</h1><ul>{links}</ul></html>"

"""The policy service over Arrow Flight (gRPC).

    generator ── do_action("progress", JSON) ──> trainer     report and wish in, grant out
    generator ── do_get(version) ──────────────> trainer     one version's weights, streamed in chunks

Weights are sliced, not copied, on the sending side and joined once on the receiving side.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from offbeat.errors import NotReady, ServiceUnavailable
from offbeat.service.base import Progress, ProgressRequest

CHUNK_BYTES = 4 << 20
CLOSE_TIMEOUT_S = 5.0

# A trainer that comes back at its old address is found again within about a second, and the first large weights of a
# connection come at full speed instead of in slowly growing windows.
CONNECTION = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
]

SCHEMA = pa.schema([pa.field("weights", pa.uint8(), nullable=False)])

# What may stand in JSON for a field of each type.
ACCEPTED: dict[Any, set[type]] = {int: {int}, float: {int, float}, bool: {bool}}

Message = TypeVar("Message", ProgressRequest, Progress)


class PolicyServer:
    """Serves progress and weights until `close`. A callback that raises fails its one call, never the server.

    progress: answers a generator's request; weights: the bytes of a version, None when it is not kept. Both are
    called from threads of the server. Port 0 takes a free one. Raises NotReady when the address cannot be bound.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        progress: Callable[[ProgressRequest], Progress],
        weights: Callable[[int], bytes | None],
    ) -> None:
        try:
            _probe(host, port)
            self._flight = _FlightServer(_location(host, port), progress, weights)
        except (pa.ArrowException, OSError, OverflowError) as error:
            advice = "choose another (observation.host, observation.service_port), or 0 for a free port"
            raise NotReady(f"policy service: cannot listen on {host} port {port}: {error}; {advice}") from error
        self._host = host
        self._closing: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._flight.port)

    @property
    def address(self) -> str:
        """What a PolicyClient takes; where every interface is bound, this machine's own address stands in it."""
        return _location(_reachable(self._host), self.port)

    def close(self) -> None:
        """Stop serving. Safe to call twice; a client that hangs inside a call delays it by at most five seconds."""
        if self._closing is None:
            self._closing = threading.Thread(target=self._flight.shutdown, name="policy-server-close", daemon=True)
            self._closing.start()
            self._closing.join(CLOSE_TIMEOUT_S)


class PolicyClient:
    """Calls the trainer at `address`. Every call raises ServiceUnavailable when it fails.

    A call fails after `timeout_s` seconds at the latest, `progress` after that and its request's patience.
    """

    def __init__(self, address: str, *, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        try:
            self._client = flight.FlightClient(address, generic_options=CONNECTION)
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable("connect", error) from error

    def progress(self, request: ProgressRequest) -> Progress:
        """Report and ask."""
        action = flight.Action("progress", json.dumps(asdict(request)).encode())
        try:
            (result,) = self._client.do_action(action, self._options(request.patience_s))
            return _parse(Progress, result.body)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unavailable("progress", error) from error

    def weights(self, version: int) -> bytes:
        """The weights of one policy version."""
        try:
            reader = self._client.do_get(flight.Ticket(str(version).encode()), self._options())
            return b"".join(chunk.data.column(0).to_numpy() for chunk in reader)
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable(f"weights of version {version}", error) from error

    def close(self) -> None:
        """Give back the connection. Safe to call twice."""
        self._client.close()

    def _options(self, patience_s: float = 0.0) -> Any:
        return flight.FlightCallOptions(timeout=self._timeout_s + patience_s)

    def _unavailable(self, call: str, error: Exception) -> ServiceUnavailable:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return ServiceUnavailable(f"policy service at {self._address}: {call}: {reason.partition('. Detail:')[0]}")


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Translates Flight calls to the two callbacks; Flight itself turns what they raise into a failed call."""

    def __init__(
        self,
        location: str,
        progress: Callable[[ProgressRequest], Progress],
        weights: Callable[[int], bytes | None],
    ) -> None:
        super().__init__(location)
        self._progress = progress
        self._weights = weights

    def do_action(self, _context: Any, action: Any) -> Iterator[Any]:
        if action.type != "progress":
            raise flight.FlightServerError(f"got action {action.type!r}, expected 'progress'")
        answer = self._progress(_parse(ProgressRequest, action.body))
        yield flight.Result(json.dumps(asdict(answer)).encode())

    def do_get(self, _context: Any, ticket: Any) -> Any:
        version = int(ticket.ticket)
        data = self._weights(version)
        if data is None:
            raise flight.FlightServerError(f"version {version} is not kept here")
        return flight.RecordBatchStream(_table(data))


def _table(data: bytes) -> pa.Table:
    """The bytes as one column cut into chunks, sharing memory."""
    buffer = pa.py_buffer(data)
    cuts = range(0, len(data), CHUNK_BYTES)
    pieces = [buffer.slice(at, min(CHUNK_BYTES, len(data) - at)) for at in cuts]
    arrays = [pa.Array.from_buffers(pa.uint8(), piece.size, [None, piece]) for piece in pieces]
    return pa.Table.from_arrays([pa.chunked_array(arrays, type=pa.uint8())], schema=SCHEMA)


def _parse(kind: type[Message], body: Any) -> Message:
    """A message from JSON; raises ValueError naming what is missing or no number."""
    values = json.loads(memoryview(body).tobytes(), parse_constant=_refuse)
    names = {field.name: field.type for field in fields(kind)}
    if not isinstance(values, dict) or set(values) != set(names):
        raise ValueError(f"{kind.__name__}: got {values!r:.200}, expected the keys {sorted(names)}")
    wrong = [name for name, expected in names.items() if type(values[name]) not in ACCEPTED[expected]]
    if wrong:
        raise ValueError(f"{kind.__name__}: got {values!r:.200}, expected numbers and booleans where {wrong} stand")
    return kind(**values)


def _refuse(constant: str) -> None:
    raise ValueError(f"got {constant}, expected a finite number")


def _location(host: str, port: int) -> str:
    return f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}"


def _reachable(host: str) -> str:
    if host not in {"0.0.0.0", "::"}:
        return host
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _probe(host: str, port: int) -> None:
    """Raise OSError with the system's own reason why this address cannot be bound; gRPC keeps it to itself."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # As gRPC binds: the last connections of a server that was killed do not stand in its successor's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()

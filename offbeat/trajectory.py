"""Trajectories as Arrow columns: one schema per workload, encode to log records, decode, and the contract.

A batch of N trajectories is one Arrow record batch of N rows; a column of shape [T, ...] per trajectory is a
fixed-size list, so numpy and torch see it as [N, T, ...] without a copy. On the log, a record is one Arrow IPC
stream of such rows, with headers that can be read, counted and deduplicated without opening it.
"""

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa

from offbeat.errors import ContractViolation, RecordCorrupt

SCHEMA_VERSION = 1
TARGET_RECORD_BYTES = 1 << 20
HEADER_CHECK = "header_crc32"

NDArray = np.ndarray[Any, Any]


def column(name: str, dtype: pa.DataType, shape: Sequence[int] = (), *, finite: bool = False) -> pa.Field:
    """A column that holds an array of `shape` per trajectory; `finite` makes NaN and infinity a contract violation."""
    metadata = {"shape": json.dumps(list(shape)), "finite": "1" if finite else "0"}
    stored = pa.list_(dtype, math.prod(shape)) if shape else dtype
    return pa.field(name, stored, nullable=False, metadata=metadata)


def ragged(name: str, dtype: pa.DataType, *, finite: bool = False, along: str = "") -> pa.Field:
    """A column that holds a list of any length per trajectory; `along`: a column whose lists are just as long."""
    metadata = {"shape": "null", "finite": "1" if finite else "0", "along": along}
    return pa.field(name, pa.list_(pa.field("item", dtype, nullable=False)), nullable=False, metadata=metadata)


# Every workload's schema begins with these: the policy versions that acted, and when the last action was taken.
COMMON_COLUMNS = (
    column("min_version", pa.int64()),
    column("max_version", pa.int64()),
    column("finished_at_ns", pa.int64()),
)


def trajectory_schema(columns: Iterable[pa.Field]) -> pa.Schema:
    """The full schema of a workload: the common columns, then its own."""
    return pa.schema([*COMMON_COLUMNS, *columns])


@dataclass(frozen=True, slots=True)
class TrajectoryBatch:
    """N trajectories as Arrow columns. Slicing and reading columns copies nothing."""

    data: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.data.num_rows)

    @classmethod
    def from_arrays(cls, schema: pa.Schema, arrays: Mapping[str, Any]) -> Self:
        """Build from numpy arrays [N, ...] (fixed columns) and Arrow arrays or lists of sequences (ragged ones)."""
        built = [_to_arrow(field, arrays[field.name]) for field in schema]
        return cls(pa.RecordBatch.from_arrays(built, schema=schema))

    @classmethod
    def concat(cls, batches: Sequence["TrajectoryBatch"]) -> Self:
        """One batch of all rows in order, in fresh memory; at least one batch is needed."""
        return cls(pa.concat_batches([batch.data for batch in batches]))

    @property
    def nbytes(self) -> int:
        """Bytes of the rows themselves, without what a slice leaves out."""
        return int(self.data.nbytes)

    def slice(self, begin: int, end: int) -> "TrajectoryBatch":
        """Rows [begin, end), sharing memory."""
        return TrajectoryBatch(self.data.slice(begin, end - begin))

    def numpy(self, name: str) -> NDArray:
        """A fixed column as a read-only array [N, *shape], sharing memory."""
        field = self.data.schema.field(name)
        array = self.data.column(name)
        shape = column_shape(field)
        if shape is None:
            raise KeyError(f"column {name!r} is ragged; read it with TrajectoryBatch.ragged")
        flat = array.flatten() if shape else array
        return cast(NDArray, flat.to_numpy(zero_copy_only=True)).reshape(len(self), *shape)

    def ragged(self, name: str) -> tuple[NDArray, NDArray]:
        """A ragged column as (values [sum of lengths], offsets [N + 1] into them)."""
        array = cast(pa.ListArray, self.data.column(name))
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        return array.flatten().to_numpy(zero_copy_only=False), offsets - offsets[0]

    @property
    def min_version(self) -> NDArray:
        """Oldest policy version that acted in each trajectory, int64 [N]."""
        return self.numpy("min_version")


def column_shape(field: pa.Field) -> tuple[int, ...] | None:
    """Shape per trajectory of a column; None for a ragged one."""
    text = (field.metadata or {}).get(b"shape", b"[]")
    shape = json.loads(text)
    return None if shape is None else tuple(shape)


def _to_arrow(field: pa.Field, values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    shape = column_shape(field)
    if shape is None:
        return pa.array(values, type=field.type)
    array = np.ascontiguousarray(values, dtype=_value_type(field).to_pandas_dtype())
    if not shape:
        return pa.array(array, type=field.type)
    if array.shape[1:] != shape:
        raise ContractViolation(f"column {field.name!r}: got shape {array.shape[1:]} per trajectory, expected {shape}")
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), type=field.type)


def _value_type(field: pa.Field) -> pa.DataType:
    kind = field.type
    return kind.value_type if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeaders:
    """What a record says of itself. (generator, incarnation, sequence) names it; sequence counts trajectories.

    On the log they carry a checksum of their own: they decide what counts as seen, before any payload is opened.
    """

    schema_version: int
    run_id: str
    generator: int
    incarnation: int
    sequence: int
    count: int
    min_version: int
    max_version: int
    created_at_ns: int
    codec: str
    crc32: int

    @property
    def producer(self) -> str:
        """The generator's one life that wrote this record."""
        return f"{self.generator}/{self.incarnation}"

    def to_mapping(self) -> dict[str, str]:
        """As the log stores them."""
        texts = {f.name: str(getattr(self, f.name)) for f in fields(self)}
        return texts | {HEADER_CHECK: _header_check(texts)}

    @classmethod
    def parse(cls, mapping: Mapping[str, str]) -> "RecordHeaders":
        """Read a record's headers; raises RecordCorrupt naming what is missing, no number or not as written."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = mapping.get(field.name)
            if text is None:
                raise RecordCorrupt(f"record header {field.name!r} is missing; got {sorted(mapping)}")
            try:
                values[field.name] = text if field.type is str else int(text)
            except ValueError as error:
                raise RecordCorrupt(f"record header {field.name!r}: got {text!r}, expected an integer") from error
        if values["count"] < 1 or values["sequence"] < 0:
            got = f"count {values['count']} and sequence {values['sequence']}"
            raise RecordCorrupt(f"record headers: got {got}, expected at least 1 and 0")
        headers = cls(**values)
        expected = headers.to_mapping()[HEADER_CHECK]
        if mapping.get(HEADER_CHECK) != expected:
            raise RecordCorrupt(f"record headers: got checksum {mapping.get(HEADER_CHECK)}, expected {expected}")
        return headers


def _header_check(texts: Mapping[str, str]) -> str:
    return str(zlib.crc32("\n".join(f"{name}={text}" for name, text in texts.items()).encode()))


def split_rows(
    batch: TrajectoryBatch, *, max_bytes: int = TARGET_RECORD_BYTES, align: int = 1
) -> list[TrajectoryBatch]:
    """Cut a batch into pieces of at most `max_bytes` of rows, each a multiple of `align` rows (a group is never cut).

    A single group above `max_bytes` is a piece of its own. The stream around the rows adds about a kilobyte.
    """
    before = np.concatenate([[0], np.cumsum(_row_bytes(batch))])  # [N + 1] bytes before each row
    pieces, begin = [], 0
    while begin < len(batch):
        fitting = int(np.searchsorted(before, before[begin] + max_bytes, side="right")) - 1 - begin
        end = min(begin + max(align, fitting // align * align), len(batch))
        pieces.append(batch.slice(begin, end))
        begin = end
    return pieces


def _row_bytes(batch: TrajectoryBatch) -> NDArray:
    """Bytes of every row, int64 [N]."""
    size = np.zeros(len(batch), dtype=np.int64)
    for field in batch.data.schema:
        width = _value_type(field).bit_width // 8
        shape = column_shape(field)
        # A ragged row also has its 4-byte offset.
        size += width * math.prod(shape) if shape is not None else 4 + width * np.diff(batch.ragged(field.name)[1])
    return size


def encode(
    batch: TrajectoryBatch,
    *,
    run_id: str,
    generator: int,
    incarnation: int,
    sequence: int,
    created_at_ns: int,
    codec: str = "none",
) -> tuple[dict[str, str], bytes]:
    """One log record: (headers, payload). codec: 'none', 'lz4' or 'zstd', applied per column buffer by Arrow."""
    options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.data.schema, options=options) as writer:
        writer.write_batch(batch.data)
    payload = sink.getvalue().to_pybytes()
    headers = RecordHeaders(
        schema_version=SCHEMA_VERSION,
        run_id=run_id,
        generator=generator,
        incarnation=incarnation,
        sequence=sequence,
        count=len(batch),
        min_version=int(batch.min_version.min()),
        max_version=int(batch.numpy("max_version").max()),
        created_at_ns=created_at_ns,
        codec=codec,
        crc32=zlib.crc32(payload),
    )
    return headers.to_mapping(), payload


def decode(headers: RecordHeaders, payload: bytes, schema: pa.Schema) -> TrajectoryBatch:
    """Open a record and hold it to the contract; shares memory with `payload`.

    Raises RecordCorrupt for bytes that are not what the headers say, ContractViolation for the rest.
    """
    if headers.schema_version != SCHEMA_VERSION:
        raise ContractViolation(f"record schema version: got {headers.schema_version}, expected {SCHEMA_VERSION}")
    if zlib.crc32(payload) != headers.crc32:
        raise RecordCorrupt(
            f"payload checksum: got {zlib.crc32(payload)}, expected {headers.crc32} ({len(payload)} bytes)"
        )
    try:
        with pa.ipc.open_stream(payload) as reader:
            data = reader.read_next_batch()
        data.validate(full=True)  # offsets of ragged columns, which would be followed unchecked otherwise
        columns = _describe(data.schema)
    except (pa.ArrowException, OSError, StopIteration, UnicodeDecodeError) as error:
        raise RecordCorrupt(f"payload is not an Arrow stream of trajectories: {error}") from error
    if not data.schema.equals(schema):
        raise ContractViolation(f"schema: got columns {columns}, expected {_describe(schema)}")
    # The reader's own schema carries the shapes; a producer's metadata is not trusted.
    batch = TrajectoryBatch(pa.RecordBatch.from_arrays(data.columns, schema=schema))
    check_contract(batch, headers)
    return batch


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def check_contract(batch: TrajectoryBatch, headers: RecordHeaders) -> None:
    """Raise ContractViolation unless every row can be trained on: counts, versions, finite numbers, whole groups."""
    if len(batch) != headers.count:
        raise ContractViolation(f"rows: got {len(batch)}, expected the {headers.count} that the headers promise")
    for name in batch.data.schema.names:
        if num_nulls := _num_nulls(batch.data.column(name)):
            raise ContractViolation(f"column {name!r} has {num_nulls} nulls, expected none")
    _check_versions(batch, headers)
    for field in batch.data.schema:
        if field.metadata[b"finite"] == b"1":
            _check_finite(batch, field)
        if other := field.metadata.get(b"along", b"").decode():
            _check_lengths(batch, field.name, other)
    if "group_id" in batch.data.schema.names:
        _check_groups(batch)


def _num_nulls(array: pa.Array) -> int:
    inner = array.flatten().null_count if pa.types.is_nested(array.type) else 0
    return int(array.null_count + inner)


def _check_versions(batch: TrajectoryBatch, headers: RecordHeaders) -> None:
    low, high = batch.min_version, batch.numpy("max_version")
    if (low < 0).any() or (low > high).any():
        raise ContractViolation("policy versions: expected 0 <= min_version <= max_version in every trajectory")
    if (np.diff(high) < 0).any():
        raise ContractViolation("policy versions go backwards inside a record")
    if (int(low.min()), int(high.max())) != (headers.min_version, headers.max_version):
        got = f"{int(low.min())}..{int(high.max())}"
        raise ContractViolation(
            f"policy versions: got {got}, the headers say {headers.min_version}..{headers.max_version}"
        )


def _check_finite(batch: TrajectoryBatch, field: pa.Field) -> None:
    values = batch.ragged(field.name)[0] if column_shape(field) is None else batch.numpy(field.name)
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
        raise ContractViolation(f"column {field.name!r}: {int((~finite).sum())} values are NaN or infinite")


def _check_lengths(batch: TrajectoryBatch, name: str, other: str) -> None:
    lengths, expected = (np.diff(batch.ragged(column)[1]) for column in (name, other))
    if (wrong := np.flatnonzero(lengths != expected)).size:
        got = f"{lengths[wrong[0]]}, expected the {expected[wrong[0]]} of {other!r}"
        raise ContractViolation(f"column {name!r}: the length of {wrong.size} trajectories is off, the first {got}")


def _check_groups(batch: TrajectoryBatch) -> None:
    ids, sizes = batch.numpy("group_id"), np.unique(batch.numpy("group_size"))
    # Runs of one id, not counts of it: whoever reads a batch takes a group's rows to stand side by side.
    begins = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1))
    counts = np.diff(begins, append=len(ids))
    if len(sizes) != 1 or (counts != sizes[0]).any() or len(np.unique(ids)) != len(begins):
        raise ContractViolation(f"groups: got sizes {sorted(set(counts.tolist()))}, expected {sizes.tolist()} each")

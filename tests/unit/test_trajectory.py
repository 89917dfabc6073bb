"""Trajectory columns, log records and the contract that every record is held to."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import ContractViolation, RecordCorrupt, TrajectoryError
from offbeat.trajectory import (
    HEADER_CHECK,
    RecordHeaders,
    TrajectoryBatch,
    column,
    column_shape,
    decode,
    encode,
    ragged,
    split_rows,
    trajectory_schema,
)

SCHEMA = trajectory_schema(
    [
        column("pixels", pa.uint8(), (2, 3, 3)),
        column("logprobs", pa.float32(), (4,), finite=True),
        column("score", pa.float64()),
        ragged("tokens", pa.int32()),
        ragged("token_logprobs", pa.float32(), finite=True),
    ]
)
GROUPED = trajectory_schema([column("group_id", pa.int64()), column("group_size", pa.int64())])


def make_batch(num: int = 5, **changed: Any) -> TrajectoryBatch:
    lengths = [n % 3 for n in range(num)]  # 0, 1, 2, 0, 1 ...: empty lists at the edges too
    arrays: dict[str, Any] = {
        "min_version": np.arange(num),
        "max_version": np.arange(num) + 1,
        "finished_at_ns": np.arange(num) * 1_000,
        "pixels": np.arange(num * 18, dtype=np.uint8).reshape(num, 2, 3, 3),
        "logprobs": -np.arange(num * 4, dtype=np.float32).reshape(num, 4),
        "score": np.linspace(-1, 1, num),
        "tokens": [list(range(n, n + length)) for n, length in enumerate(lengths)],
        "token_logprobs": [[-0.5] * length for length in lengths],
    }
    return TrajectoryBatch.from_arrays(SCHEMA, arrays | changed)


def make_groups(ids: Sequence[int], sizes: Sequence[int]) -> TrajectoryBatch:
    zeros = np.zeros(len(ids))
    common = {"min_version": zeros, "max_version": zeros, "finished_at_ns": zeros}
    return TrajectoryBatch.from_arrays(GROUPED, common | {"group_id": ids, "group_size": sizes})


def record(batch: TrajectoryBatch, *, codec: str = "none") -> tuple[dict[str, str], bytes]:
    return encode(batch, run_id="r", generator=3, incarnation=17, sequence=40, created_at_ns=99, codec=codec)


def reopened(batch: TrajectoryBatch, **changed: Any) -> TrajectoryBatch:
    headers, payload = record(batch)
    return decode(replace(RecordHeaders.parse(headers), **changed), payload, batch.data.schema)


# Columns


def test_a_fixed_column_is_an_array_that_shares_memory() -> None:
    batch = make_batch()
    pixels = batch.numpy("pixels")
    assert pixels.shape == (5, 2, 3, 3)
    assert pixels.dtype == np.uint8
    assert pixels[1, 0, 0].tolist() == [18, 19, 20]
    assert np.shares_memory(pixels, batch.numpy("pixels"))
    assert not pixels.flags.writeable


def test_a_ragged_column_is_values_and_offsets() -> None:
    values, offsets = make_batch().ragged("tokens")
    assert values.tolist() == [1, 2, 3, 4]
    assert offsets.tolist() == [0, 0, 1, 3, 3, 4]


def test_a_ragged_column_read_as_fixed_says_so() -> None:
    with pytest.raises(KeyError, match="ragged"):
        make_batch().numpy("tokens")


def test_a_slice_holds_its_rows_and_only_their_bytes() -> None:
    batch = make_batch()
    part = batch.slice(1, 4)
    assert len(part) == 3
    assert part.min_version.tolist() == [1, 2, 3]
    assert np.array_equal(part.numpy("pixels"), batch.numpy("pixels")[1:4])
    assert np.shares_memory(part.numpy("pixels"), batch.numpy("pixels"))
    values, offsets = part.ragged("tokens")
    assert values.tolist() == [1, 2, 3]
    assert offsets.tolist() == [0, 1, 3, 3]
    assert part.nbytes < batch.nbytes


def test_concat_keeps_the_order_of_rows() -> None:
    batch = make_batch()
    again = TrajectoryBatch.concat([batch.slice(0, 2), batch.slice(2, 2), batch.slice(2, 5)])
    assert again.data.equals(batch.data)


def test_a_wrong_shape_names_column_and_shapes() -> None:
    with pytest.raises(ContractViolation, match=r"'logprobs': got shape \(3,\) per trajectory, expected \(4,\)"):
        make_batch(logprobs=np.zeros((5, 3)))


def test_a_column_knows_its_shape() -> None:
    assert column_shape(SCHEMA.field("pixels")) == (2, 3, 3)
    assert column_shape(SCHEMA.field("score")) == ()
    assert column_shape(SCHEMA.field("tokens")) is None


# Records


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize(("begin", "end"), [(0, 5), (1, 4), (0, 1)])
def test_a_record_opens_to_what_was_written(codec: str, begin: int, end: int) -> None:
    batch = make_batch().slice(begin, end)
    headers, payload = record(batch, codec=codec)
    again = decode(RecordHeaders.parse(headers), payload, SCHEMA)
    assert again.data.equals(batch.data)
    for name in ("pixels", "logprobs", "score"):
        assert np.array_equal(again.numpy(name), batch.numpy(name))


def test_a_slice_is_written_without_what_it_leaves_out() -> None:
    batch = make_batch(2000)
    small = len(record(batch.slice(0, 10))[1])
    assert small < len(record(batch)[1]) / 20


def test_headers_say_what_the_record_holds() -> None:
    headers = RecordHeaders.parse(record(make_batch())[0])
    assert (headers.run_id, headers.generator, headers.incarnation, headers.sequence) == ("r", 3, 17, 40)
    assert (headers.count, headers.min_version, headers.max_version) == (5, 0, 5)
    assert (headers.producer, headers.created_at_ns, headers.codec) == ("3/17", 99, "none")


def test_headers_make_the_way_through_the_log_and_back() -> None:
    headers = RecordHeaders.parse(record(make_batch())[0])
    assert RecordHeaders.parse(headers.to_mapping()) == headers


@pytest.mark.parametrize("name", [*record(make_batch())[0]])
def test_a_missing_header_is_corrupt_and_named(name: str) -> None:
    headers = record(make_batch())[0]
    del headers[name]
    with pytest.raises(RecordCorrupt, match="checksum" if name == HEADER_CHECK else name):
        RecordHeaders.parse(headers)


@pytest.mark.parametrize("name", [*record(make_batch())[0]])
def test_a_header_with_one_flipped_byte_is_corrupt(name: str) -> None:
    headers = record(make_batch())[0]
    for at in range(len(headers[name])):
        for bit in range(7):
            text = headers[name]
            flipped = text[:at] + chr(ord(text[at]) ^ (1 << bit)) + text[at + 1 :]
            with pytest.raises(RecordCorrupt):
                RecordHeaders.parse(headers | {name: flipped})


@pytest.mark.parametrize(("name", "text"), [("count", "0"), ("count", "-1"), ("sequence", "-1"), ("count", "9" * 5000)])
def test_headers_that_make_no_record_are_corrupt(name: str, text: str) -> None:
    with pytest.raises(RecordCorrupt):
        RecordHeaders.parse(record(make_batch())[0] | {name: text})


def test_every_flipped_byte_of_a_payload_is_found() -> None:
    headers, payload = record(make_batch())
    parsed = RecordHeaders.parse(headers)
    for at in range(len(payload)):
        flipped = bytearray(payload)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(RecordCorrupt, match="checksum"):
            decode(parsed, bytes(flipped), SCHEMA)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_that_a_checksum_agrees_with_never_gets_further_than_an_error(data: st.DataObject) -> None:
    headers, payload = record(make_batch())
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    parsed = replace(RecordHeaders.parse(headers), crc32=zlib.crc32(damaged))
    try:
        batch = decode(parsed, bytes(damaged), SCHEMA)
    except TrajectoryError:
        return
    assert len(batch) == 5
    assert np.isfinite(batch.numpy("logprobs")).all()
    assert len(batch.ragged("tokens")[1]) == 6


@pytest.mark.parametrize("payload", [b"", b"\x00", b"not arrow at all", b"\xff" * 64])
def test_bytes_that_are_no_stream_are_corrupt(payload: bytes) -> None:
    headers = replace(RecordHeaders.parse(record(make_batch())[0]), crc32=zlib.crc32(payload))
    with pytest.raises(RecordCorrupt, match="not an Arrow stream"):
        decode(headers, payload, SCHEMA)


def test_a_cut_payload_is_corrupt() -> None:
    headers, payload = record(make_batch())
    with pytest.raises(RecordCorrupt):
        decode(RecordHeaders.parse(headers), payload[:-8], SCHEMA)


# The contract


def test_a_record_of_another_schema_version_is_refused() -> None:
    with pytest.raises(ContractViolation, match="schema version: got 2, expected 1"):
        reopened(make_batch(), schema_version=2)


def test_a_record_of_another_workload_names_both_schemas() -> None:
    headers, payload = record(make_batch())
    with pytest.raises(ContractViolation, match=r"got columns .*pixels.*, expected .*group_id"):
        decode(RecordHeaders.parse(headers), payload, GROUPED)


def test_a_count_that_is_not_the_rows_is_refused() -> None:
    with pytest.raises(ContractViolation, match="got 5, expected the 4"):
        reopened(make_batch(), count=4)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        ([0, 2], [1, 1], "min_version <= max_version"),
        ([-1, 0], [0, 0], "0 <= min_version"),
        ([0, 0], [3, 2], "backwards"),
    ],
)
def test_versions_that_make_no_sense_are_refused(low: list[int], high: list[int], said: str) -> None:
    with pytest.raises(ContractViolation, match=said):
        reopened(make_batch(2, min_version=low, max_version=high))


@pytest.mark.parametrize("changed", [{"min_version": 1}, {"max_version": 9}])
def test_versions_that_the_headers_do_not_say_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ContractViolation, match="the headers say"):
        reopened(make_batch(), **changed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    logprobs = np.zeros((5, 4))
    logprobs[3, 2] = value
    with pytest.raises(ContractViolation, match="'logprobs': 1 values are NaN or infinite"):
        reopened(make_batch(logprobs=logprobs))
    with pytest.raises(ContractViolation, match="'token_logprobs': 1 values"):
        reopened(make_batch(token_logprobs=[[], [value], [0.0, 0.0], [], [0.0]]))


def test_infinities_that_cancel_are_refused() -> None:
    logprobs = np.zeros((5, 4))
    logprobs[0, :2] = np.inf, -np.inf
    with pytest.raises(ContractViolation, match="2 values"):
        reopened(make_batch(logprobs=logprobs))


def test_a_column_that_may_be_nan_may_be_nan() -> None:
    assert np.isnan(reopened(make_batch(score=np.full(5, np.nan))).numpy("score")).all()


def test_large_numbers_are_finite() -> None:
    assert len(reopened(make_batch(logprobs=np.full((5, 4), 3e38)))) == 5


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("score", pa.array([1.0, None, 1.0, 1.0, 1.0])),
        ("tokens", [[], [1], None, [], [2]]),
        (
            "tokens",
            pa.array([[], [None], [1, 2], [], [2]], type=pa.list_(pa.int32())).cast(SCHEMA.field("tokens").type),
        ),
        ("logprobs", pa.array([[0, 0, None, 0]] * 5, type=SCHEMA.field("logprobs").type)),
    ],
)
def test_nulls_are_refused(name: str, values: Any) -> None:
    with pytest.raises(ContractViolation, match=f"'{name}' has . nulls"):
        reopened(make_batch(**{name: values}))


ALONG = trajectory_schema(
    [
        ragged("ids", pa.int32()),
        ragged("id_logprobs", pa.float32(), finite=True, along="ids"),
        ragged("id_versions", pa.int64(), along="ids"),
        ragged("others", pa.float32()),
    ]
)


def make_along(ids: Sequence[int], logprobs: Sequence[int], versions: Sequence[int]) -> TrajectoryBatch:
    """Lists of these lengths, row by row; the other column goes along with none."""
    zeros = np.zeros(len(ids))
    common = {"min_version": zeros, "max_version": zeros, "finished_at_ns": zeros}
    lists = {
        "ids": [[7] * length for length in ids],
        "id_logprobs": [[-0.5] * length for length in logprobs],
        "id_versions": [[0] * length for length in versions],
        "others": [[1.0]] * len(ids),
    }
    return TrajectoryBatch.from_arrays(ALONG, common | lists)


def test_lists_as_long_as_those_they_go_along_with_pass() -> None:
    lengths = [2, 0, 3, 1]
    batch = make_along(lengths, lengths, lengths)
    assert reopened(batch).data.equals(batch.data)
    assert reopened(batch.slice(1, 4)).ragged("id_logprobs")[1].tolist() == [0, 0, 3, 4]


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (
            ([2, 1], [2, 2], [2, 1]),
            "column 'id_logprobs': the length of 1 trajectories is off, the first 2, expected the 1",
        ),
        (
            ([2, 1], [2, 1], [0, 0]),
            "column 'id_versions': the length of 2 trajectories is off, the first 0, expected the 2",
        ),
        # As many values in all, but not row by row.
        (
            ([2, 1], [1, 2], [2, 1]),
            "column 'id_logprobs': the length of 2 trajectories is off, the first 1, expected the 2",
        ),
    ],
)
def test_lists_of_another_length_are_refused(lengths: tuple[list[int], list[int], list[int]], said: str) -> None:
    with pytest.raises(ContractViolation, match=f"{said} of 'ids'"):
        reopened(make_along(*lengths))


def test_what_goes_along_is_the_readers_to_say() -> None:
    batch = make_along([2, 1], [1, 2], [2, 1])
    # A producer that left the rule out of its schema is held to it all the same.
    silent = pa.schema([field.remove_metadata() for field in ALONG])
    headers, payload = record(TrajectoryBatch(pa.RecordBatch.from_arrays(batch.data.columns, schema=silent)))
    with pytest.raises(ContractViolation, match="id_logprobs"):
        decode(RecordHeaders.parse(headers), payload, ALONG)


def test_whole_groups_pass() -> None:
    assert len(reopened(make_groups([7, 7, 8, 8], [2, 2, 2, 2]))) == 4


@pytest.mark.parametrize(
    ("ids", "sizes"),
    [([7, 7, 8], [2, 2, 2]), ([7, 7, 7, 8], [2, 2, 2, 2]), ([7, 7], [2, 3]), ([7], [0])],
)
def test_a_group_that_is_not_whole_is_refused(ids: list[int], sizes: list[int]) -> None:
    with pytest.raises(ContractViolation, match="groups"):
        reopened(make_groups(ids, sizes))


# Cutting into records


def test_pieces_hold_every_row_once_and_at_most_max_bytes() -> None:
    batch = make_batch(100)  # 3 x 8 common, 18 pixels, 16 log-probs, 8 score, 2 offsets of 4: 74 bytes, and 8 per token
    pieces = split_rows(batch, max_bytes=300)
    assert TrajectoryBatch.concat(pieces).data.equals(batch.data)
    # Rows of 74, 82 and 90 bytes in turn: three fit 300 bytes (at most 246), four (at least 320) do not.
    assert [len(piece) for piece in pieces] == [3] * 33 + [1]


def test_rows_of_uneven_length_are_cut_by_their_own_size() -> None:
    tokens = [[0] * 1000, *([[0]] * 9)]
    batch = make_batch(10, tokens=tokens, token_logprobs=[[0.0] * len(row) for row in tokens])
    assert [len(piece) for piece in split_rows(batch, max_bytes=500)] == [1, 6, 3]  # 8,074 bytes, then 82 each


def test_a_group_is_never_cut() -> None:
    batch = make_groups([n // 4 for n in range(20)], [4] * 20)  # 5 columns of 8 bytes: 40 a row, 160 a group
    assert [len(piece) for piece in split_rows(batch, max_bytes=400, align=4)] == [8, 8, 4]
    assert [len(piece) for piece in split_rows(batch, max_bytes=10, align=4)] == [4] * 5


def test_a_batch_that_fits_is_one_piece() -> None:
    batch = make_batch()
    assert [piece.data.equals(batch.data) for piece in split_rows(batch)] == [True]
    assert [len(piece) for piece in split_rows(make_groups([1, 1], [4, 4]), align=4)] == [2]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=40),
    max_bytes=st.integers(1, 4000),
    align=st.sampled_from([1, 2, 4]),
)
def test_any_cut_keeps_rows_order_groups_and_bound(lengths: list[int], max_bytes: int, align: int) -> None:
    tokens = [[1] * length for length in lengths]
    batch = make_batch(len(lengths), tokens=tokens, token_logprobs=[[0.0] * length for length in lengths])
    pieces = split_rows(batch, max_bytes=max_bytes, align=align)
    assert TrajectoryBatch.concat(pieces).data.equals(batch.data)
    assert all(len(piece) % align == 0 for piece in pieces[:-1])
    # Arrow counts one offset more than rows for each of the two ragged columns.
    assert all(piece.nbytes <= max_bytes + 8 or len(piece) <= align for piece in pieces)

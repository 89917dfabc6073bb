"""What becomes of each record: read, duplicate, missing, quarantined."""

from dataclasses import replace

import pytest

from offbeat.errors import RecordCorrupt
from offbeat.ledger import Cursor, Segment
from offbeat.log import Entry, open_log
from offbeat.trainer.intake import Intake, fetch
from tests.builders import RUN_ID, SCHEMA, entry


@pytest.fixture
def log(tmp_path):
    opened = open_log("sqlite", folder=tmp_path / "log", num_partitions=2, max_record_bytes=1 << 20)
    yield opened
    opened.close()


def intake(log, cursors=None, marks=None):
    return Intake(log, SCHEMA, run_id=RUN_ID, cursors=cursors or {}, marks=marks or {})


def flipped(found: Entry, at: int) -> Entry:
    payload = bytearray(found.payload)
    payload[at] ^= 1
    return replace(found, payload=bytes(payload))


def test_reads_every_partition_in_order_and_once(log):
    log.append("trajectories", 0, [entry([0, 0], sequence=0), entry([0], sequence=2)])
    log.append("trajectories", 1, [entry([1], sequence=0, generator=1)])
    reader = intake(log)
    items = reader.poll(5)
    assert [(item.partition, len(item), item.fate) for item in items] == [(0, 2, None), (0, 1, None), (1, 1, None)]
    assert reader.poll(5) == []
    assert reader.marks == {"0/1": 3, "1/1": 1}


def test_record_seen_twice_is_dropped_as_duplicate(log):
    log.append("trajectories", 0, [entry([0, 0], sequence=0)] * 2)
    first, second = intake(log).poll(0)
    assert (first.fate, second.fate, second.count) == (None, "duplicate", 2)


def test_same_sequence_of_another_incarnation_is_no_duplicate(log):
    log.append("trajectories", 0, [entry([0], sequence=0), entry([0], sequence=0, incarnation=2)])
    assert [item.fate for item in intake(log).poll(0)] == [None, None]


def test_gap_in_the_numbering_is_counted_as_quarantined(log):
    log.append("trajectories", 0, [entry([0], sequence=0), entry([0], sequence=4)])
    _, gap, last = intake(log).poll(0)
    assert (gap.fate, gap.count, len(gap), gap.record) == ("quarantined", 3, 0, None)
    assert "3 trajectories before sequence 4" in gap.reason
    assert (last.fate, len(last)) == (None, 1)


def test_flipped_byte_quarantines_the_record_and_keeps_it(log):
    broken = flipped(entry([0, 0], sequence=0), 100)
    log.append("trajectories", 0, [broken, entry([0], sequence=2)])
    bad, good = intake(log).poll(0)
    assert (bad.fate, bad.count, good.fate) == ("quarantined", 2, None)
    assert "checksum" in bad.reason
    assert bad.record is not None
    assert bad.record.payload == broken.payload


def test_unreadable_headers_quarantine_nothing_countable_but_the_gap_counts_it_later(log):
    log.append("trajectories", 0, [Entry(headers={"what": "ever"}, payload=b"?"), entry([0], sequence=2)])
    bad, gap, good = intake(log).poll(0)
    assert (bad.fate, bad.count) == ("quarantined", 0)
    assert (gap.fate, gap.count) == ("quarantined", 2)
    assert good.fate is None


def test_partly_seen_record_is_quarantined_for_its_new_part_only(log):
    log.append("trajectories", 0, [entry([0, 0], sequence=0), entry([0, 0], sequence=1)])
    _, overlap = intake(log).poll(0)
    assert (overlap.fate, overlap.count, overlap.following) == ("quarantined", 1, 3)


def test_version_from_the_future_is_quarantined(log):
    log.append("trajectories", 0, [entry([7], sequence=0)])
    (item,) = intake(log).poll(6)
    assert item.fate == "quarantined"
    assert "does not exist yet; newest is 6" in item.reason


def test_record_of_another_run_is_quarantined(log):
    found = entry([0], sequence=0)
    log.append("trajectories", 0, [replace(found, headers={**found.headers, "run_id": "other"})])
    (item,) = intake(log).poll(0)
    assert item.fate == "quarantined"


def test_resumed_inside_a_record_gives_the_rest_of_it(log):
    log.append("trajectories", 0, [entry([0, 0, 0], sequence=0)])
    begin = log.begin("trajectories", 0)
    (item,) = intake(log, cursors={0: Cursor(begin, 2)}, marks={"0/1": 3}).poll(0)
    assert (item.fate, item.row, len(item)) == (None, 2, 1)


def test_trimmed_records_are_skipped_and_counted_as_missing(log):
    log.append("trajectories", 0, [entry([0], sequence=0), entry([0], sequence=1)])
    second = log.begin("trajectories", 0) + 1
    log.trim("trajectories", 0, second)
    reader = intake(log, cursors={0: Cursor(second - 1, 0)})
    items = reader.poll(0) or reader.poll(0)
    assert [(item.fate, item.count) for item in items] == [("quarantined", 1), (None, 1)]


def test_fetch_reads_the_planned_rows_again(log):
    log.append("trajectories", 0, [entry([0, 0, 0], sequence=0, x=[1, 2, 3])])
    log.append("trajectories", 1, [entry([0, 0], sequence=0, generator=1, x=[4, 5])])
    begins = [log.begin("trajectories", partition) for partition in (0, 1)]
    found = fetch(log, (Segment(1, begins[1], 1, 2), Segment(0, begins[0], 0, 2)), SCHEMA)
    assert found.numpy("x")[:, 0].tolist() == [5, 1, 2]


def test_fetch_names_a_record_that_is_gone(log):
    log.append("trajectories", 0, [entry([0], sequence=0)])
    with pytest.raises(RecordCorrupt, match="position 1 is not on the log"):
        fetch(log, (Segment(0, 1, 0, 1),), SCHEMA)

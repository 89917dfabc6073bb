"""The ledger as a table: one row per step, for anyone with a Parquet reader."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from offbeat.ledger.rows import Outcome, StepRow

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("epoch", pa.int64()),
        ("seed", pa.int64()),
        ("version_in", pa.int64()),
        ("version_out", pa.int64()),
        ("batch_size", pa.int64()),
        ("segments", pa.list_(pa.list_(pa.int64(), 4))),
        ("drops", pa.string()),
        ("trained", pa.int64()),
        ("stale", pa.int64()),
        ("evicted", pa.int64()),
        ("quarantined", pa.int64()),
        ("duplicate", pa.int64()),
        ("digest", pa.string()),
        ("metrics", pa.string()),
        ("finished_at_ns", pa.int64()),
    ]
)


def write_ledger(path: Path, steps: Sequence[tuple[StepRow, Outcome]]) -> None:
    """Write steps with their outcomes. Totals are cumulative; drops and metrics are JSON; segments are
    [partition, position, begin, end] each."""
    rows = [_table_row(row, outcome) for row, outcome in steps]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


def _table_row(row: StepRow, outcome: Outcome) -> dict[str, object]:
    drops = [
        {
            "partition": d.segment.partition,
            "position": d.segment.position,
            "fate": d.fate,
            "reason": d.reason,
            "count": d.count,
        }
        for d in row.drops
    ]
    totals = row.totals
    return {
        "step": row.step,
        "epoch": outcome.epoch,
        "seed": row.seed,
        "version_in": row.version_in,
        "version_out": row.version_out,
        "batch_size": row.batch_size,
        "segments": [[s.partition, s.position, s.begin, s.end] for s in row.segments],
        "drops": json.dumps(drops),
        "trained": totals.trained,
        "stale": totals.stale,
        "evicted": totals.evicted,
        "quarantined": totals.quarantined,
        "duplicate": totals.duplicate,
        "digest": outcome.digest,
        "metrics": json.dumps(dict(outcome.metrics)),
        "finished_at_ns": outcome.finished_at_ns,
    }

"""Great Expectations suites over samples of trajectories and over evaluation scores, with their Data Docs.

    TrajectoryBatch ──> trajectory_frame ──┐
                                           ├──> validate(frame, suite) ──> QualityReport, <folder>/index.html
    seeds, values   ──> score_frame ───────┘

The contract in offbeat.trajectory guards each record on its way in. The suites look again, from outside and at many
records together, and leave pages that a person can read.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from offbeat.errors import ConfigError, NotReady
from offbeat.trajectory import TrajectoryBatch, column_shape

if TYPE_CHECKING:
    import pandas as pd

NDArray = np.ndarray[Any, Any]

RESET = 4  # Bit of a control trajectory's flags: the slot only reset its environment.
MAX_FLAGS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """A suite's result. `failed` has one sentence per failed check; `docs` is the page to open."""

    suite: str
    success: bool
    num_checks: int
    failed: tuple[str, ...]
    docs: Path


def trajectory_frame(batch: TrajectoryBatch) -> "pd.DataFrame":
    """One row per trajectory, whatever the workload.

    A scalar column stays as it is. An array or ragged column x becomes x_length, x_min, x_max, x_mean (over finite
    values, NaN where there is none) and x_finite_share (1 for no values). Flags also give flags_reset_share.
    """
    import pandas as pd

    columns: dict[str, NDArray] = {}
    for field in batch.data.schema:
        if column_shape(field) == ():
            columns[field.name] = batch.data.column(field.name).to_numpy(zero_copy_only=False)
        else:
            columns |= {f"{field.name}_{key}": array for key, array in _reduced(batch, field).items()}
    if "flags" in batch.data.schema.names:
        columns["flags_reset_share"] = ((batch.numpy("flags") & RESET) != 0).mean(axis=1)
    return pd.DataFrame(columns)


def score_frame(seeds: Sequence[int], values: NDArray) -> "pd.DataFrame":
    """One row per evaluated seed: seed, value, and finite (1 or 0)."""
    import pandas as pd

    return pd.DataFrame({"seed": list(seeds), "value": values, "finite": np.isfinite(values).astype(np.int64)})


def validate(frame: "pd.DataFrame", suite: str, folder: Path, *, num_rows: int | None = None) -> QualityReport:
    """Check a frame with the suite of this name and write its Data Docs under `folder`, in place of earlier ones.

    num_rows: exact number of rows expected; by default at least one. A missing column is a failed check. Raises
    ConfigError for an unknown suite, NotReady when the pages cannot be written.
    """
    if suite not in SUITES:
        raise ConfigError(f"quality suite: got {suite!r}, expected one of {', '.join(sorted(SUITES))}")
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    # It announces each temporary folder; that is nobody's news.
    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
    expect: Any = gx.expectations
    rows = expect.ExpectTableRowCountToBeBetween(min_value=num_rows or 1, max_value=num_rows)
    try:
        result = _run_checkpoint(gx, frame, suite, [rows, *SUITES[suite](expect)], folder)
    except OSError as error:
        raise NotReady(f"cannot write Data Docs under {folder}: {error.strerror}") from error
    failed = tuple(_sentence(check) for check in result.results if not check.success)
    return QualityReport(
        suite=suite,
        success=bool(result.success),
        num_checks=len(result.results),
        failed=failed,
        docs=folder / "index.html",
    )


def _control_suite(expect: Any) -> list[Any]:
    """What holds for trajectories of any Gymnasium environment. A density may exceed 1, so log-probs have no bound."""
    return [
        expect.ExpectColumnValuesToBeBetween(column="min_version", min_value=0),
        expect.ExpectColumnPairValuesAToBeGreaterThanB(column_A="max_version", column_B="min_version", or_equal=True),
        expect.ExpectColumnValuesToBeBetween(column="finished_at_ns", min_value=1),
        *(
            _all_finite(expect, name)
            for name in ("observations", "actions", "rewards", "logprobs", "final_observations")
        ),
        *(_same_length(expect, name) for name in ("rewards", "logprobs", "flags")),
        expect.ExpectColumnValuesToBeBetween(column="flags_min", min_value=0),
        expect.ExpectColumnValuesToBeBetween(column="flags_max", max_value=MAX_FLAGS),
        # Of the sample, not of each trajectory: an unroll of one step may be nothing but a reset.
        expect.ExpectColumnMeanToBeBetween(column="flags_reset_share", min_value=0, max_value=1, strict_max=True),
        # An episode lasts one step or more, also where none ended inside the unroll and there is nothing to check.
        expect.ExpectColumnValuesToBeBetween(column="episode_lengths_min", min_value=1),
        expect.ExpectColumnPairValuesToBeEqual(column_A="episode_returns_length", column_B="episode_lengths_length"),
        _all_finite(expect, "episode_returns"),
    ]


def _language_suite(expect: Any) -> list[Any]:
    """What holds for completions of any language model. A log-prob of a sampled token is never positive."""
    return [
        expect.ExpectColumnValuesToBeBetween(column="min_version", min_value=0),
        expect.ExpectColumnPairValuesAToBeGreaterThanB(column_A="max_version", column_B="min_version", or_equal=True),
        expect.ExpectColumnValuesToBeBetween(column="finished_at_ns", min_value=1),
        expect.ExpectColumnValuesToBeBetween(column="group_size", min_value=1),
        expect.ExpectColumnValuesToBeBetween(column="prompt_ids_length", min_value=1),
        expect.ExpectColumnPairValuesToBeEqual(column_A="logprobs_length", column_B="completion_ids_length"),
        expect.ExpectColumnPairValuesToBeEqual(column_A="token_versions_length", column_B="completion_ids_length"),
        _all_finite(expect, "logprobs"),
        expect.ExpectColumnValuesToBeBetween(column="logprobs_max", max_value=0),
        # Of the sample: single rewards may be unknown, but rewards of which most are teach nothing.
        expect.ExpectColumnValuesToNotBeNull(column="reward", mostly=0.5),
    ]


def _evaluation_suite(expect: Any) -> list[Any]:
    """What holds for any evaluation: every seed once, every score a finite number."""
    return [
        expect.ExpectColumnValuesToNotBeNull(column="seed"),
        expect.ExpectColumnValuesToBeUnique(column="seed"),
        expect.ExpectColumnValuesToNotBeNull(column="value"),
        expect.ExpectColumnValuesToBeBetween(column="finite", min_value=1, max_value=1),
    ]


# By workload kind for trajectories; 'evaluation' for scores.
SUITES: Mapping[str, Callable[[Any], list[Any]]] = {
    "control": _control_suite,
    "language": _language_suite,
    "evaluation": _evaluation_suite,
}


def _all_finite(expect: Any, name: str) -> Any:
    return expect.ExpectColumnValuesToBeBetween(column=f"{name}_finite_share", min_value=1, max_value=1)


def _same_length(expect: Any, name: str) -> Any:
    return expect.ExpectColumnUniqueValueCountToBeBetween(column=f"{name}_length", min_value=1, max_value=1)


def _reduced(batch: TrajectoryBatch, field: pa.Field) -> dict[str, NDArray]:
    if column_shape(field) is None:
        values, offsets = batch.ragged(field.name)
    else:
        values = batch.numpy(field.name).reshape(-1)
        offsets = np.linspace(0, len(values), len(batch) + 1, dtype=np.int64)
    lengths = np.diff(offsets)
    counts, low, high = lengths, values, values
    if values.dtype.kind == "f":  # Integers are finite; images are spared the copies.
        finite = np.isfinite(values)
        counts = _by_row(np.add, finite, offsets, dtype=np.int64)
        low, high, values = (np.where(finite, values, fill) for fill in (np.inf, -np.inf, 0))
    some = counts > 0
    total = _by_row(np.add, values, offsets, dtype=np.float64)
    return {
        "length": lengths,
        "min": np.where(some, _by_row(np.minimum, low, offsets, dtype=values.dtype), np.nan),
        "max": np.where(some, _by_row(np.maximum, high, offsets, dtype=values.dtype), np.nan),
        "mean": np.divide(total, counts, out=np.full(len(counts), np.nan), where=some),
        "finite_share": np.divide(counts, lengths, out=np.ones(len(counts)), where=lengths > 0),
    }


def _by_row(reduce: np.ufunc, values: NDArray, offsets: NDArray, *, dtype: Any) -> NDArray:
    """Reduce each row's stretch of `values`; 0 for an empty row, where reduceat would read its neighbour's first."""
    filled = np.diff(offsets) > 0
    result = np.zeros(len(filled), dtype=dtype)
    if filled.any():
        result[filled] = reduce.reduceat(values, offsets[:-1][filled], dtype=dtype)
    return result


def _run_checkpoint(gx: Any, frame: "pd.DataFrame", suite: str, checks: list[Any], folder: Path) -> Any:
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    for site in list(context.get_site_names()):
        context.delete_data_docs_site(site)
    context.add_data_docs_site(site_name="quality", site_config=_site(folder))
    asset = context.data_sources.add_pandas("offbeat").add_dataframe_asset("sample")
    validation = gx.ValidationDefinition(
        name=suite,
        data=asset.add_batch_definition_whole_dataframe("all"),
        suite=context.suites.add(gx.ExpectationSuite(name=suite, expectations=checks)),
    )
    checkpoint = gx.Checkpoint(
        name=suite,
        validation_definitions=[context.validation_definitions.add(validation)],
        actions=[gx.checkpoint.UpdateDataDocsAction(name="docs")],
        result_format="SUMMARY",
    )
    run = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    return next(iter(run.run_results.values()))


def _site(folder: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.absolute())},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }


def _sentence(check: Any) -> str:
    """One failed check in words: what was expected of which column, and what was got."""
    given = {key: value for key, value in check.expectation_config.kwargs.items() if key != "batch_id"}
    names = [given.pop(key) for key in ("column", "column_A", "column_B") if key in given]
    bounds = ", ".join(f"{key} {value}" for key, value in given.items() if value is not None)
    wanted = check.expectation_config.type.removeprefix("expect_").replace("_", " ")
    subject = f"{' and '.join(names) or 'sample'}: expected {wanted}"
    return f"{subject}{f' ({bounds})' if bounds else ''}; got {_got(check)}"


def _got(check: Any) -> str:
    faults = check.exception_info or {}
    messages = [fault["exception_message"] for fault in faults.values() if isinstance(fault, dict)]
    if messages or faults.get("raised_exception"):
        return str(messages[0] if messages else faults["exception_message"])
    result = check.result
    if "observed_value" in result:
        return str(result["observed_value"])
    examples = ", ".join(map(_plain, result.get("partial_unexpected_list", [])[:3]))
    return f"{result.get('unexpected_count')} of {result.get('element_count')} rows otherwise, such as {examples}"


def _plain(value: Any) -> str:
    return " with ".join(map(str, value)) if isinstance(value, tuple) else str(value)

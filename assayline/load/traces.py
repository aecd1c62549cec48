"""Recorded arrival times: a column of a JSONL, CSV or Parquet file, in the order of the requests."""

import math
from collections.abc import Iterator

from assayline.errors import PromptError, SpecError
from assayline.prompts.files import UnreadableRow
from assayline.prompts.sources import read_rows
from assayline.spec.load import LoadSpec, Trace
from assayline.spec.prompts import FileSource

UNITS_PER_S = {"s": 1.0, "ms": 1000.0}


def check_trace(load: LoadSpec | None) -> None:
    """Reads a load's trace to its end, if it has one. Raises SpecError for what is wrong with it."""
    if load is None or not isinstance(load.arrival, Trace):
        return
    stamps = sum(1 for _ in read_offsets(load.arrival))
    if not stamps:
        raise SpecError(f"load.arrival: the trace {load.arrival.path} has no rows. Expected a stamp per request.")


def read_offsets(trace: Trace) -> Iterator[float]:
    """Seconds since the trace's first stamp, at its speed. Raises SpecError at a row without one or out of order."""
    scale = UNITS_PER_S[trace.unit] * trace.speed
    first: float | None = None
    last = -math.inf
    for number, stamp in enumerate(_read_stamps(trace), start=1):
        first = stamp if first is None else first
        if stamp < last:
            raise SpecError(
                f"load.arrival: row {number} of the trace {trace.path} has {trace.column} {stamp:.17g}, less than "
                f"the {last:.17g} above it. Expected stamps in the order of the requests: sort the file."
            )
        last = stamp
        yield (stamp - first) / scale


def _read_stamps(trace: Trace) -> Iterator[float]:
    try:
        for number, row in enumerate(read_rows(FileSource(path=trace.path)), start=1):
            if isinstance(row, UnreadableRow):
                raise SpecError(f"load.arrival.path: {row.message}")
            if trace.column not in row:
                raise SpecError(
                    f"load.arrival: row {number} of the trace {trace.path} has no column {trace.column!r}, given "
                    f"{', '.join(map(str, row)) or 'nothing'}. Set load.arrival.column."
                )
            yield _parse_stamp(row[trace.column], f"row {number} of the trace {trace.path}", trace)
    except PromptError as error:
        raise SpecError(f"load.arrival.path: {error}") from error


def _parse_stamp(value: object, where: str, trace: Trace) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            stamp = float(value)
        except (ValueError, OverflowError):
            stamp = math.nan
        if math.isfinite(stamp):
            return stamp
    raise SpecError(
        f"load.arrival: {where} has {trace.column} {value!r:.80}, expected a number of {trace.unit}, such as "
        "1690000000.25. Convert dates to seconds first."
    )

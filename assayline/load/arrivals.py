"""Due times of requests: an arrival pattern in seconds since its start.

Every pattern begins with its first request, at 0, so n requests have n - 1 gaps between them; starting a Poisson
process at an arrival does not change its gaps. The same seed gives the same times. A resumed pattern continues exactly,
because the earlier times are drawn again and skipped.
"""

import datetime
import itertools
import math
import random
from collections.abc import Iterator

from assayline.errors import PromptError, SpecError
from assayline.prompts.row import UNITS_PER_S, UnreadableRow, read_stamp
from assayline.prompts.sources.files import read_files
from assayline.prompts.sources.traces import find_arrival
from assayline.spec.load import AllAtOnce, Arrival, Concurrency, ConstantRate, LoadSpec, Poisson, Trace
from assayline.spec.prompts import AnySource, TraceSource

EXAMPLES = {
    "s": "a number of s, such as 1690000000.25. For dates, set load.arrival.unit to date",
    "ms": "a number of ms, such as 1690000000250. For dates, set load.arrival.unit to date",
    "date": "a date with a time, such as 2023-11-16 18:01:50.995",
}


def check_trace(load: LoadSpec | None, source: AnySource | None = None) -> None:
    """Read a load's trace, or that of the prompts' source, to its end. Raises SpecError if it is not valid."""
    if load is None or not isinstance(trace := load.arrival, Trace):
        return
    if trace.path is None:
        assert isinstance(source, TraceSource), "the spec refuses another one"
        trace = find_arrival(source, trace.speed)
    stamps = sum(1 for _ in read_offsets(trace))
    if not stamps:
        raise SpecError(
            f"load.arrival: the trace {trace.path} has no rows. hint: give a trace with a time stamp per request."
        )


def read_offsets(trace: Trace) -> Iterator[float]:
    """Yield seconds since the trace's first stamp, at its speed. Raises SpecError for a missing or unordered stamp."""
    scale = UNITS_PER_S[trace.unit] * trace.speed
    first: float | None = None
    last = -math.inf
    for number, stamp in enumerate(_read_stamps(trace), start=1):
        first = stamp if first is None else first
        if stamp < last:
            raise SpecError(
                f"load.arrival: row {number} of the trace {trace.path} has {trace.column} {_show(stamp, trace)}, less "
                f"than the {_show(last, trace)} above it. hint: sort the file by time."
            )
        last = stamp
        yield (stamp - first) / scale


def _read_stamps(trace: Trace) -> Iterator[float]:
    """Yield the stamps in the trace's unit."""
    try:
        for number, row in enumerate(read_files(str(trace.path)), start=1):
            if isinstance(row, UnreadableRow):
                raise SpecError(f"load.arrival.path: {row.message}")
            if trace.column not in row:
                raise SpecError(
                    f"load.arrival: row {number} of the trace {trace.path} has no column {trace.column!r}, only "
                    f"{', '.join(map(str, row)) or 'empty fields'}. hint: set load.arrival.column."
                )
            yield _parse_stamp(row[trace.column], f"row {number} of the trace {trace.path}", trace)
    except PromptError as error:
        raise SpecError(f"load.arrival.path: {error}") from error


def _parse_stamp(value: object, where: str, trace: Trace) -> float:
    stamp = read_stamp(value, trace.unit)
    if stamp is None:
        raise SpecError(f"load.arrival: {where} has {trace.column} {value!r:.80}, expected {EXAMPLES[trace.unit]}.")
    return stamp


def _show(stamp: float, trace: Trace) -> str:
    """Format a stamp as in the file."""
    if trace.unit == "date":
        return datetime.datetime.fromtimestamp(stamp, datetime.UTC).isoformat(" ")
    return f"{stamp:.17g}"


def list_offsets(arrival: Arrival, first: int = 0) -> Iterator[float]:
    """Return the due times in seconds since the pattern's start, from the 0-based request `first` on.

    Endless, except for a trace. Raises SpecError for an unreadable trace, and ValueError for a closed loop, which has
    no times, and for a trace whose times come with its requests.
    """
    return itertools.islice(_list_all(arrival), first, None)


def count_most(load: LoadSpec) -> float:
    """Return the maximum number of requests that an open loop sends; infinity if only its prompts limit it."""
    most = math.inf if load.max_requests is None else load.max_requests
    limit_s = load.max_duration_s
    if limit_s is None or load.trace_speed is not None or isinstance(load.arrival, AllAtOnce):
        return most
    return min(most, sum(1 for _ in itertools.takewhile(lambda offset_s: offset_s <= limit_s, _list_all(load.arrival))))


def _list_all(arrival: Arrival) -> Iterator[float]:
    match arrival:
        case AllAtOnce():
            return itertools.repeat(0.0)
        case ConstantRate(rate_per_s=rate):
            return (number / rate for number in itertools.count())
        case Poisson(rate_per_s=rate, burstiness=shape, seed=seed):
            generator = random.Random(seed)
            gaps = (generator.gammavariate(shape, 1 / (shape * rate)) for _ in itertools.count())
            return itertools.accumulate(gaps, initial=0.0)
        case Trace(path=None):
            raise ValueError("requests bring their own times")
        case Trace():
            return read_offsets(arrival)
        case Concurrency():
            raise ValueError("a closed loop has no times at which requests are due")

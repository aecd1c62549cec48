"""When requests are due: an arrival pattern as seconds since its start.

Every pattern begins with its first request, at 0: n requests have n - 1 gaps between them. So a Poisson process is seen
from one of its arrivals, which changes nothing about the gaps. The same seed gives the same times, and a pattern that
is resumed in the middle continues exactly as it would have: what was drawn before is drawn again, and skipped.
"""

import itertools
import random
from collections.abc import Iterator

from assayline.load.traces import read_offsets
from assayline.spec.load import AllAtOnce, Arrival, Concurrency, ConstantRate, Gamma, Poisson, Trace


def list_offsets(arrival: Arrival, first: int = 0) -> Iterator[float]:
    """Due times in seconds since the pattern's start, from request number `first` on, 0 being the first of all.

    Endless, but for a trace. Raises SpecError for a trace that cannot be read, and ValueError for a closed loop, which
    has no times, and for a trace whose times come with its requests.
    """
    return itertools.islice(_list_all(arrival), first, None)


def _list_all(arrival: Arrival) -> Iterator[float]:
    match arrival:
        case AllAtOnce():
            return itertools.repeat(0.0)
        case ConstantRate(rate_per_s=rate):
            return (number / rate for number in itertools.count())
        case Poisson(rate_per_s=rate, seed=seed):
            generator = random.Random(seed)
            return _add_up(generator.expovariate(rate) for _ in itertools.count())
        case Gamma(rate_per_s=rate, burstiness=shape, seed=seed):
            generator = random.Random(seed)
            return _add_up(generator.gammavariate(shape, 1 / (shape * rate)) for _ in itertools.count())
        case Trace(path=None):
            raise ValueError("requests bring their own times")
        case Trace():
            return read_offsets(arrival)
        case Concurrency():
            raise ValueError("a closed loop has no times at which requests are due")


def _add_up(gaps: Iterator[float]) -> Iterator[float]:
    return itertools.accumulate(gaps, initial=0.0)

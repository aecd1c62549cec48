"""When an open loop is taken for over-saturated: simulated queues, of which the truth is known."""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest

from assayline.load.saturation import FIRST_REQUESTS, SaturationWatch

RATE_PER_S = 10.0
Draw = Callable[[random.Random], float]
"""A service time with mean 1."""


def exponential(dice: random.Random) -> float:
    return dice.expovariate(1.0)


def log_normal(dice: random.Random) -> float:
    return dice.lognormvariate(-0.5, 1.0)


def constant(dice: random.Random) -> float:
    return 1.0


def poisson(dice: random.Random) -> Iterator[float]:
    return itertools.accumulate(dice.expovariate(RATE_PER_S) for _ in itertools.count())


def bursts(dice: random.Random) -> Iterator[float]:
    return itertools.accumulate(dice.gammavariate(0.25, 4 / RATE_PER_S) for _ in itertools.count())


def even(dice: random.Random) -> Iterator[float]:
    return (number / RATE_PER_S for number in itertools.count())


def stop_of(
    seed: int, load: float, servers: int, service: Draw, arrivals: Callable[[random.Random], Iterator[float]],
    requests: int, latency_s: float = 0.0,
) -> int | None:  # fmt: skip
    """Return after how many requests a first-come-first-served queue with that many servers is stopped, or None.

    `latency_s` is what each request takes besides, however many there are.
    """
    dice = random.Random(seed)
    due = list(itertools.islice(arrivals(dice), requests))
    mean_s = load * servers / RATE_PER_S
    free = [0.0] * servers
    ends = []
    for number, at_s in enumerate(due):
        end_s = max(at_s, heapq.heappop(free)) + mean_s * service(dice)
        heapq.heappush(free, end_s)
        ends.append((end_s + latency_s, number))
    ends.sort()
    watch = SaturationWatch()
    for at_s in due[:FIRST_REQUESTS]:
        watch.expect(at_s)
    sent = finished = 0
    for second in range(1, math.ceil(due[-1])):
        while sent < requests and due[sent] <= second:
            sent += 1
        while finished < requests and ends[finished][0] <= second:
            watch.finish(due[ends[finished][1]], second)
            finished += 1
        if watch.observe(second, sent - finished, finished) is not None:
            return sent
    return None


@pytest.mark.parametrize(
    ("servers", "service", "arrivals", "latency_s"),
    [
        (1, exponential, poisson, 0.0),
        (1, log_normal, poisson, 0.0),
        (16, log_normal, poisson, 0.0),
        (4, exponential, bursts, 0.0),
        (16, log_normal, even, 20.0),
    ],
)
def test_ninety_percent_is_not_stopped(servers, service, arrivals, latency_s):
    """Twenty runs of each: with one alarm in a hundred runs, fewer than two are expected among all hundred."""
    stops = [stop_of(seed, 0.9, servers, service, arrivals, 6000, latency_s) for seed in range(20)]
    assert sum(stop is not None for stop in stops) <= 1


@pytest.mark.parametrize(
    ("load", "servers", "service", "arrivals", "within"),
    [
        (1.2, 1, exponential, poisson, 4000),
        (1.2, 16, log_normal, poisson, 4000),
        (1.2, 16, constant, even, 1000),
        (1.5, 4, exponential, bursts, 2000),
        (1.5, 16, exponential, poisson, 1000),
        (5.0, 1, exponential, poisson, 2000),
    ],
)
def test_an_overload_is_found(load, servers, service, arrivals, within):
    stops = [stop_of(seed, load, servers, service, arrivals, within) for seed in range(20)]
    assert sum(stop is not None for stop in stops) >= 19


def test_long_first_answer_does_not_count_as_overload():
    """Everything in flight grows for as long as one request takes, however few there are of them."""
    for latency_s in (5.0, 60.0, 300.0):
        assert stop_of(1, 0.1, 1, exponential, poisson, 6000, latency_s) is None


def test_an_engine_that_never_answers_is_not_judged():
    watch = SaturationWatch()
    for number in range(900):
        watch.expect(float(number))
    assert all(watch.observe(second, 10 * second, 0) is None for second in range(1, 900))


def test_the_reason_has_its_numbers():
    watch = SaturationWatch()
    for number in range(FIRST_REQUESTS):
        watch.expect(number / 10)
        watch.finish(number / 10, 6.0)
    reasons = [watch.observe(second, 5 * second, 5 * second) for second in range(1, 60)]
    reason = next(reason for reason in reasons if reason)
    assert reason.startswith("the engine cannot keep up. Requests in flight grew by ")

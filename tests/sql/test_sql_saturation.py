"""saturation: queues that grow are told from queues that wander."""

import heapq

import numpy as np
import pytest

pytestmark = pytest.mark.slow

SEEDS = range(5)
MANY = range(40)

Times = tuple[np.ndarray, np.ndarray]
"""When each request was sent, and when it finished."""


def simulate_queue(
    seed: int, requests: int, utilisation: float, servers: int = 1, service: str = "exponential"
) -> Times:
    """First come, first served; a service takes one second on average, arrivals are Poisson."""
    random = np.random.default_rng(seed)
    sent_at_s = np.cumsum(random.exponential(1 / (utilisation * servers), requests))
    service_s = random.exponential(1.0, requests) if service == "exponential" else np.ones(requests)
    free_at_s = [0.0] * servers
    finished_at_s = np.empty(requests)
    for i in range(requests):
        begins_at_s = max(sent_at_s[i], heapq.heappop(free_at_s))
        finished_at_s[i] = begins_at_s + service_s[i]
        heapq.heappush(free_at_s, finished_at_s[i])
    return sent_at_s, finished_at_s


def given_queue(store, times: Times, run_id: str = "run", **load) -> None:
    """A run of these requests, each sent when it was due."""
    store.given("loads", {"run_id": run_id, **load})
    store.given_answers(
        *(
            {"due_at_s": sent, "sent_at_s": sent, "arrived_at_s": sent, "finished_at_s": finished}
            for sent, finished in zip(*(column.tolist() for column in times), strict=True)
        ),
        run_id=run_id,
    )


RATES = ("offered_requests_per_s", "finished_requests_per_s")


def read(store, run_id="run"):
    """The metrics of saturation, and how many requests they are of."""
    values = store.values(run_id)
    found = {name: values[name]["value"] for name in (*RATES, "in_flight_growth_per_s", "judged_s", "is_saturated")}
    found["is_saturated"] = None if found["is_saturated"] is None else bool(found["is_saturated"])
    return found | {"judged_requests": values["judged_s"]["n"]}


def judge(times, from_s=None, until_s=None):
    """The definition once more, with NumPy: is it saturated, how many are judged, and the slope by a fine grid."""
    sent, finished = times
    begins = sent[0] if from_s is None else from_s
    ends = sent[-1] if until_s is None else until_s
    begins = max(begins, finished[:10].max())
    if begins >= ends:
        return None, 0, None
    inside = [column[(column >= begins) & (column <= ends)] for column in (sent, finished)]
    edges = np.linspace(begins, ends, 11)
    changes = np.histogram(inside[0], edges)[0] - np.histogram(inside[1], edges)[0]
    grid = np.linspace(begins, ends, 20_001)
    in_flight = np.searchsorted(np.sort(sent), grid, "right") - np.searchsorted(np.sort(finished), grid, "right")
    slope = np.polyfit(grid, in_flight, 1)[0]
    if inside[0].size < 50:
        return None, inside[0].size, slope
    error = changes.std(ddof=1) / np.sqrt(10)
    grows = changes.sum() > 0.02 * inside[0].size and changes.mean() > 2.2621571628 * error
    return bool(grows), inside[0].size, slope


def share_saturated(**queue):
    """How many of many simulated runs are called saturated, and of how many it cannot be told.

    Judged by NumPy, which the next test compares with a run's metrics.
    """
    found = [judge(simulate_queue(seed, **queue))[0] for seed in MANY]
    return found.count(True) / len(MANY), found.count(None) / len(MANY)


@pytest.mark.parametrize(("servers", "service"), [(1, "constant"), (16, "exponential")])
def test_a_stable_queue_at_ninety_percent_is_rarely_called_saturated(servers, service):
    saturated, _ = share_saturated(requests=400, utilisation=0.9, servers=servers, service=service)
    assert saturated <= 0.05


def test_an_overload_is_found():
    assert share_saturated(requests=400, utilisation=1.5, servers=16)[0] >= 0.9


def test_a_short_run_cannot_be_told(store):
    assert share_saturated(requests=40, utilisation=3.0) == (0.0, 1.0)
    given_queue(store, simulate_queue(0, 40, 3.0))
    assert read(store)["is_saturated"] is None


def test_the_verdict_and_the_slope_against_numpy(store):
    """Twenty queues, as runs of one database: planning a query takes longer than judging them."""
    queues = {
        f"{utilisation} of what it can serve, seed {seed}": simulate_queue(seed, 300, utilisation, servers=4)
        for utilisation in (0.5, 0.9, 1.1, 2.0)
        for seed in SEEDS
    }
    for run_id, times in queues.items():
        given_queue(store, times, run_id=run_id)
    for run_id, times in queues.items():
        found = read(store, run_id)
        is_saturated, judged, slope = judge(times)
        assert (found["is_saturated"], found["judged_requests"]) == (is_saturated, judged), run_id
        assert found["in_flight_growth_per_s"] == pytest.approx(slope, rel=0.01, abs=0.01), run_id


def test_rates_and_windows_against_numpy(store):
    expected = {}
    for seed in SEEDS:
        times = simulate_queue(seed, 400, 1.3, servers=2)
        sent, finished = times
        begins, ends = sent[0] + 20.0, sent[-1] - 15.0
        given_queue(store, times, run_id=f"seed-{seed}", warmup_s=20.0, cooldown_s=15.0)
        inside = sent[(sent >= begins) & (sent <= ends)]
        is_saturated, judged, _ = judge(times, begins, ends)
        gone = ((finished >= begins) & (finished <= ends)).sum()
        rate = (inside.size - 1) / (inside[-1] - inside[0])
        expected[f"seed-{seed}"] = {
            "offered_requests_per_s": rate, "finished_requests_per_s": gone / (ends - begins),
            "judged_requests": judged, "is_saturated": is_saturated,
        }  # fmt: skip
    for run_id, row in expected.items():
        found = read(store, run_id)
        assert {name: found[name] for name in row} == pytest.approx(row), run_id


def test_an_engine_that_fills_up_at_first_is_not_saturated(store):
    """Twenty a second, five seconds each: a hundred are in flight after five seconds, and so it stays."""
    sent = np.arange(400) / 20
    given_queue(store, (sent, sent + 5.0), arrival="constant")
    found = read(store)
    assert found["is_saturated"] is False
    assert found["judged_s"] == pytest.approx(sent[-1] - 5.45)
    assert found["in_flight_growth_per_s"] == pytest.approx(0.0, abs=0.05)


def test_saturation_detects_steady_growth_without_variance(store):
    sent = np.arange(200.0)
    given_queue(store, (sent, 2 * sent + 1), arrival="constant")
    found = read(store)
    assert found["is_saturated"] is True
    assert found["finished_requests_per_s"] == pytest.approx(0.5, rel=0.02)
    assert found["in_flight_growth_per_s"] == pytest.approx(0.5, rel=0.02)


def test_a_lagging_generator_offers_more_than_it_sends(store):
    store.given("loads", {"arrival": "constant"})
    store.given_answers(
        *(
            {"due_at_s": i / 2, "sent_at_s": float(i), "arrived_at_s": float(i), "finished_at_s": i + 0.5}
            for i in range(100)
        )
    )
    assert (read(store)["offered_requests_per_s"], read(store)["is_saturated"]) == (2.0, False)


def test_of_all_at_once_it_cannot_be_told(store):
    store.given("loads", {"arrival": "all_at_once"})
    store.given_answers(*({"due_at_s": 1.0, "sent_at_s": 1 + i / 1000, "finished_at_s": 2.0 + i} for i in range(200)))
    found = read(store)
    assert [found[name] for name in (*RATES, "judged_requests", "is_saturated")] == [None, found[RATES[1]], 0, None]


def test_closed_loops_and_runs_without_a_load_have_no_row(store):
    store.given("loads", {"run_id": "closed", "arrival": "concurrency", "concurrency": 4})
    for run_id in ("closed", "bare"):
        store.given_answers({"sent_at_s": 0.0, "finished_at_s": 1.0}, run_id=run_id)
    assert all("judged_s" not in store.values(run_id) for run_id in ("closed", "bare"))


def test_a_load_that_was_ended_for_it_is_saturated(store):
    given_queue(store, simulate_queue(0, 30, 3.0))
    assert read(store)["is_saturated"] is None
    store.given("engine_events", {"event": "load_ended", "details_json": '{"reason": "saturated"}'})
    assert read(store)["is_saturated"] is True


def test_each_engine_is_judged_by_its_own_stretch(store):
    """The pause while an engine is rebuilt does not count as time in which the queue was stable."""
    sent = np.arange(100.0)
    store.given("loads", {})
    store.given_answers(
        *(
            {
                "request_id": f"{generation}-{i}",
                "engine_generation": generation,
                "due_at_s": 5000.0 * generation + i,
                "sent_at_s": 5000.0 * generation + i,
                "finished_at_s": 5000.0 * generation + 2 * i + 1,
            }
            for generation in (0, 1)
            for i in sent
        )
    )
    found = read(store)
    assert found["is_saturated"] is True
    assert found["offered_requests_per_s"] == pytest.approx(1.0)
    assert found["in_flight_growth_per_s"] == pytest.approx(0.5, rel=0.05)

"""Queues whose answer is known: simulated, as runs of an open-loop load."""

import heapq

import numpy as np

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

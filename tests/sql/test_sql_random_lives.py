"""engine and metrics of a run against plain Python, on random lives of engines.

A life is drawn as raw rows (events, samples, answers) together with what is known of it while it is drawn.
"""

import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

Row = dict[str, Any]


@dataclass
class Life:
    """One engine: its raw rows."""

    worker: str
    attempt: int
    generation: int
    events: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    answers: list[Row] = field(default_factory=list)

    def tell(self, event: str, at_s: float, duration_s: float | None = None, **details: Any) -> None:
        self.events.append(
            {
                "worker": self.worker,
                "attempt": self.attempt,
                "engine_generation": self.generation,
                "event": event,
                "at_s": at_s,
                "duration_s": duration_s,
                "details_json": json.dumps(details),
            }
        )

    def first(self, event: str) -> Row | None:
        return next((row for row in self.events if row["event"] == event), None)

    def stamps(self, name: str, only_ok: bool = True) -> list[float]:
        return [row[name] for row in self.answers if not (only_ok and row["error_kind"])]


def draw_lives(random: np.random.Generator) -> tuple[Row, list[Life]]:
    """A run's row and its engines: a few workers, attempts and engines each, on one clock."""
    attempts = int(random.integers(1, 4))
    run = {"attempt": attempts, "state": str(random.choice(["completed", "running", "failed"]))}
    lives: list[Life] = []
    began_s = 0.0
    generations = dict.fromkeys(["a", "b", "c"][: random.integers(1, 4)], 0)
    for attempt in range(1, attempts + 1):
        ends = [began_s]
        for worker in generations:
            if random.random() < 0.3 and attempt > 1:
                continue
            at_s = began_s + random.uniform(0, 2)
            for _ in range(random.integers(1, 4)):
                life = Life(worker, attempt, generations[worker])
                generations[worker] += 1
                at_s = _draw_life(random, life, at_s)
                lives.append(life)
                ends.append(at_s)
                if life.events[-1]["event"] not in ("failed", "reduced"):
                    break  # closed or vanished: the worker is gone too
        began_s = max(ends) + random.uniform(0, 50)
    return run, lives


def _draw_life(random: np.random.Generator, life: Life, at_s: float) -> float:
    """Fills the life from `at_s` on, and returns when it was over."""
    load_s = random.uniform(5, 10)
    at_s += load_s
    if random.random() < 0.15:
        life.tell("failed", at_s, kind="start_memory", phase="start", in_flight_requests=0)
        return at_s
    life.tell("opened", at_s, load_s, window_requests=8)
    if random.random() < 0.8:
        warmup_s = random.uniform(0.5, 2)
        at_s += warmup_s
        life.tell("warmed_up", at_s, warmup_s)
    began_s = at_s + 0.01
    for _ in range(random.integers(-6, 12)):  # a third die or end without an answer
        arrived_s = at_s + random.exponential(1)
        answer = {
            "worker": life.worker,
            "engine_generation": life.generation,
            "arrived_at_s": arrived_s,
            "finished_at_s": arrived_s + random.exponential(4),
            "output_tokens": int(random.integers(1, 50)),
            "error_kind": "refused" if random.random() < 0.2 else None,
        }
        life.answers.append(answer)
        at_s = max(at_s, answer["finished_at_s"]) if random.random() < 0.3 else at_s
    end_s = max([at_s, *life.stamps("finished_at_s", only_ok=False)]) + random.uniform(0.1, 5)
    if random.random() < 0.8:
        for sampled_s in np.arange(began_s, end_s, 1.0):
            life.samples.append(
                {
                    "worker": life.worker,
                    "engine_generation": life.generation,
                    "at_s": float(sampled_s),
                    "engine_steps": 1,
                    "in_flight_requests": int(random.integers(0, 3)),
                }
            )
    ending = random.choice(["closed", "failed", "vanished"])
    if ending == "closed":
        life.tell("closed", end_s, 0.2)
    if ending == "failed":
        in_flight = {"in_flight_requests": int(random.integers(0, 3))} if random.random() < 0.8 else {}
        life.tell("failed", end_s, phase="run", kind="device_oom", **in_flight)
        if random.random() < 0.5:
            life.tell("reduced", end_s, window_requests={"from": 8, "to": 4})
    return float(end_s)


def expect_life(life: Life, lives: list[Life], run: Row) -> Row:
    """Return its expected row of engine_history."""
    siblings = [one for one in lives if one.worker == life.worker and one.attempt == life.attempt]
    place = siblings.index(life)
    newest = max(one.generation for one in lives if one.worker == life.worker)
    opened, warmed, failed, closed = map(life.first, ("opened", "warmed_up", "failed", "closed"))
    began = ended = lost_s = recovery_s = None
    finished, busy = life.stamps("finished_at_s"), [row["at_s"] for row in life.samples if row["in_flight_requests"]]
    if failed:
        ending, over_s = "failed", failed["at_s"]
    elif closed:
        ending, over_s = "closed", closed["at_s"]
    elif run["state"] == "running" and life.generation == newest and life.attempt == run["attempt"]:
        ending, over_s = "running", None
    else:
        signs = life.events + life.samples
        ending = "vanished"
        over_s = max([row["at_s"] for row in signs] + life.stamps("finished_at_s", only_ok=False))
    in_flight = json.loads(failed["details_json"]).get("in_flight_requests") if failed else 0
    if finished:
        began, ended = min(life.stamps("arrived_at_s")), max(finished)
    elif ending in ("failed", "vanished"):
        arrived = life.stamps("arrived_at_s", only_ok=False)
        if arrived:
            began = min(arrived)
        elif warmed:
            began = warmed["at_s"]
        elif busy:
            began = min(busy)
        elif in_flight:
            began = opened["at_s"]
    if failed and in_flight != 0:  # or not known
        ended = max([failed["at_s"], *finished])
    if ending == "vanished" and busy:
        ended = max([*busy, *finished])
    if began is None or ended is None:
        began = ended = None
    if ending in ("failed", "vanished") and ended is not None:
        lost_s = ended - (max(finished) if finished else began)
    load_s, warmup_s = (event and event["duration_s"] for event in (opened, warmed))
    if place:
        ready_s = failed["at_s"] if failed and began is None else (warmed or opened)["at_s"]
        before = expect_life(siblings[place - 1], lives, run)["ended_at_s"]
        recovery_s = ready_s - before
    return {
        "worker": life.worker,
        "engine_generation": life.generation,
        "attempt": life.attempt,
        "is_rebuild": place > 0,
        "earlier_reductions": sum(1 for one in siblings[:place] if one.first("reduced")),
        "ending": ending,
        "work_began_at_s": began,
        "work_ended_at_s": ended,
        "ended_at_s": over_s,
        "working_s": None if began is None else ended - began,
        "lost_s": lost_s,
        "load_s": load_s,
        "warmup_s": warmup_s,
        "rebuild_s": load_s + (warmup_s or 0) if place and load_s else None,
        "recovery_s": recovery_s,
        "ok_requests": len(finished),
        "error_requests": len(life.answers) - len(finished),
    }


def expect_summary(lives: list[Life], run: Row) -> Row:
    """Return the expected run_summary of the run, with the union of intervals from every piece between two moments."""
    rows = [expect_life(life, lives, run) for life in lives]
    stretches = np.array([[r["work_began_at_s"], r["work_ended_at_s"]] for r in rows if r["working_s"] is not None])
    duration_s = working_s = None
    if len(stretches):
        moments = np.unique(stretches)
        middles = (moments[1:] + moments[:-1]) / 2
        covered = ((stretches[:, :1] < middles) & (middles < stretches[:, 1:])).any(axis=0)
        duration_s, working_s = np.ptp(moments), float(np.diff(moments)[covered].sum())
    starts: dict[int, list[Row]] = {}
    for row in rows:
        if not row["is_rebuild"] and row["load_s"]:
            starts.setdefault(row["attempt"], []).append(row)
    cold, *later = [starts[attempt] for attempt in sorted(starts)] or [[]]
    ok_requests = sum(row["ok_requests"] for row in rows)
    return {
        "attempts": run["attempt"],
        "duration_s": duration_s,
        "working_s": working_s,
        "downtime_s": None if duration_s is None else duration_s - working_s,
        "requests_per_s": ok_requests / working_s if ok_requests else 0.0 if working_s else None,
        "ok_requests": ok_requests,
        "load_s": max((row["load_s"] for row in cold), default=None),
        "warmup_s": max((row["warmup_s"] for row in cold if row["warmup_s"]), default=None),
        "resume_load_s": sum(max(r["load_s"] + (r["warmup_s"] or 0) for r in attempt) for attempt in later) or None,
        "rebuilds": sum(row["is_rebuild"] for row in rows),
        "rebuild_s": sum(row["rebuild_s"] or 0 for row in rows) or None,
        "recovery_s": sum(row["recovery_s"] or 0 for row in rows) if any(r["is_rebuild"] for r in rows) else None,
        "lost_s": _sum_known([row["lost_s"] for row in rows]),
        "reductions": sum(1 for life in lives if life.first("reduced")),
        "engine_failures": sum(row["ending"] == "failed" for row in rows),
        "vanished_engines": sum(row["ending"] == "vanished" for row in rows),
    }


def _sum_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def test_random_lives_against_python(store):
    """Twenty-four runs in one database: a query is planned longer than it runs."""
    drawn = {f"seed {seed}": draw_lives(np.random.default_rng(seed)) for seed in range(24)}
    for run_id, (run, lives) in drawn.items():
        numbers = count()
        answers = [{"request_id": str(next(numbers)), **row} for life in lives for row in life.answers]
        store.given_answers(*answers, run_id=run_id)
        store.connection.execute("update runs set attempt = ?, state = ? where run_id = ?", [*run.values(), run_id])
        for table, rows in (
            ("engine_events", [row for life in lives for row in life.events]),
            ("telemetry", [row for life in lives for row in life.samples]),
        ):
            store.given(table, *({"run_id": run_id, **row} for row in rows))
    expected = [
        {"run_id": run_id, **expect_life(life, lives, run)} for run_id, (run, lives) in drawn.items() for life in lives
    ]
    store.expect("engine", *expected, run_id=None)
    summaries = {row["run_id"]: row for row in store.rows("run_summary", run_id=None)}
    histories = store.rows("engine", run_id=None)
    for run_id, (run, lives) in drawn.items():
        if run["state"] == "running":  # whose metrics are not stored
            continue
        expected_summary, found = expect_summary(lives, run), summaries[run_id]
        shown = {name: found[name] for name in expected_summary}
        assert shown == pytest.approx(expected_summary, abs=1e-9), run_id
        if found["duration_s"] is not None:
            assert 0 <= found["downtime_s"] <= found["duration_s"], run_id
            working_s = sum(row["working_s"] or 0 for row in histories if row["run_id"] == run_id)
            assert found["lost_s"] is None or found["lost_s"] <= working_s, run_id

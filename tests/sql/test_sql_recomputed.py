"""Metrics of drawn runs (`metric_cases.py`): those of the fixture, and those of plain Python and NumPy."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pytest
from metric_cases import CASES, FOLDER, LARGE, Rows, draw_run, insert_rows, read_fixture
from row_kit import Row, Store

from assayline.store import metrics
from assayline.store.database import SQL_FOLDER, apply_schema
from assayline.store.measure import list_statements
from assayline.store.metrics import store_metrics

COLUMNS = "value, low, high, n, unit, higher_is_better"
SMALL = [run_id for run_id in CASES if run_id != LARGE]
LIVES = {
    f"lives-{seed}": {
        "workers": 1 + seed % 3, "attempts": 1 + seed // 3 % 3, "crashes": 0.4, "vanishes": 0.3, "errors": 0.2,
        "requests": 5 + 9 * (seed % 4), "state": ("completed", "running", "failed")[seed // 4 % 3],
    }
    for seed in range(18)
}  # fmt: skip
"""Runs whose engines die in every way, some of them before they answer, and before the run has ended."""


@pytest.fixture(scope="module")
def measured() -> Iterator[Store]:
    with duckdb.connect(config={"threads": 1}) as connection:
        apply_schema(connection)
        read_fixture(connection)
        for run_id, traits in LIVES.items():
            insert_rows(connection, draw_run(run_id, **traits))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "MOST_RUNS", 7)  # several batches, and a last one that is not full
            store_metrics(connection, [*SMALL, *LIVES])
        yield Store(connection)


def read_values(connection: duckdb.DuckDBPyConnection, table: str, runs: list[str]) -> dict[Any, Any]:
    query = f"select run_id, metric, statistic, detail, {COLUMNS} from {table} where list_contains(?, run_id)"
    return {row[:4]: row[4:] for row in connection.execute(query, [runs]).fetchall()}


def expect_fixture(connection: duckdb.DuckDBPyConnection, runs: list[str]) -> None:
    expected = read_values(connection, f"'{FOLDER}/expected.parquet'", runs)
    found = read_values(connection, "raw.metric_values", runs)
    assert len(expected) > 60 * len(runs) and expected.keys() <= found.keys()
    wrong = {key: (found[key], values) for key, values in expected.items() if not _is_close(found[key], values)}
    assert wrong == {}


def _is_close(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a == b if a is None or isinstance(a, (str, bool)) else a == pytest.approx(b, rel=1e-9) for a, b in pairs)


def test_metric_values_are_those_of_the_fixture(measured):
    """The fixture has the values of stacked views, with SciPy's quantile in place of their approximation."""
    expect_fixture(measured.connection, SMALL)


def test_metric_values_of_100_000_requests_are_those_of_the_fixture():
    with duckdb.connect(config={"threads": 1}) as connection:
        apply_schema(connection)
        insert_rows(connection, draw_run(LARGE, **CASES[LARGE]))
        store_metrics(connection, [LARGE])
        expect_fixture(connection, [LARGE])


def test_statements_run_in_any_client_with_a_run_id(measured):
    """As a user pastes them: two settings, then the file. They read views of the whole database."""
    connection = measured.connection.cursor()
    connection.execute("set search_path = 'internal,raw,main'")
    connection.execute("set variable run_id = 'poisson-windows'")
    query = "select metric, statistic, detail, value from metric_value where run_id = 'poisson-windows'"
    stored = {row[:3]: row[3] for row in connection.execute(query).fetchall()}
    assert len(list_statements()) <= 17
    for file in sorted((SQL_FOLDER / "metrics").glob("*.sql")):
        result = connection.execute(file.read_text("utf-8"))
        names = [column[0] for column in result.description]
        rows = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        if {"metric", "statistic", "value"} <= set(names):
            made = {(row["metric"], row["statistic"], row.get("detail")): row["value"] for row in rows}
            known = {key: value for key, value in made.items() if value is not None}
            assert {key: stored.get(key) for key in known} == pytest.approx(known, rel=1e-9), file.name


class Recomputed:
    """A run's metrics from its raw rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows = defaultdict(list, rows)
        (self.run,) = rows["runs"]
        self.load = next(iter(self.rows["loads"]), None)
        answers = defaultdict(list)
        for row in self.rows["completions"]:
            answers[row["request_id"]].append(row)
        self.requests = [{**row, **_choose(answers.get(row["request_id"], []))} for row in self.rows["requests"]]
        for row in self.requests:
            kind = row.get("error_kind")
            row["status"] = (
                "missing" if "worker" not in row else "unsent" if kind == "not_sent" else "error" if kind else "ok"
            )
        self.ok = [row for row in self.requests if row["status"] == "ok"]
        self.answered = [row for row in self.requests if row["status"] in ("ok", "error")]
        self.windows = self._find_windows()
        self.measured = [row for row in self.answered if self._is_measured(row)]
        self.measured_ok = [row for row in self.measured if row["status"] == "ok"]

    def _find_windows(self) -> dict[Any, tuple[float, float]]:
        """Between which seconds requests are measured, by engine."""
        found = defaultdict(list)
        for row in self.answered:
            if row.get("sent_at_s") is not None:
                found[row["worker"], row["engine_generation"]].append(row["sent_at_s"])
        if not self.load:
            return {}
        margins = self.load["warmup_s"], self.load["cooldown_s"]
        return {key: (min(at) + margins[0], max(at) - margins[1]) for key, at in found.items() if any(margins)}

    def _is_measured(self, row: Row) -> bool:
        if row["worker"] == "prepare":
            return False
        if not (self.load and self.load["warmup_s"] + self.load["cooldown_s"] > 0):
            return True
        begins, ends = self.windows.get((row["worker"], row["engine_generation"]), (math.inf, 0))
        return row.get("sent_at_s") is not None and begins <= row["sent_at_s"] <= ends

    def counts(self) -> Row:
        expected = self.run["expected_requests"]
        expected = len(self.requests) if expected is None else expected
        unsent = sum(row["status"] == "unsent" for row in self.requests)
        errors = len(self.answered) - len(self.ok)
        cacheable = [
            row["prompt_tokens"] for row in self.ok if "prompt_tokens" in row and row.get("cached_tokens") is not None
        ]
        found = {
            "expected_requests": expected,
            "answered_requests": (len(self.answered), expected),
            "ok_requests": (len(self.ok), expected),
            "error_requests": errors,
            "unsent_requests": unsent,
            "missing_requests": max(0, expected - len(self.answered) - unsent),
            "measured_requests": (len(self.measured), len(self.answered)),
            "error_share": errors / len(self.answered) if self.answered else None,
            "prompts": len({row["prompt_id"] for row in self.requests}),
            "attempts": self.run["attempt"],
        }
        for name in ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions"):
            found[name] = _sum([row.get(name) for row in self.ok])
        found["prefix_cache_hit_rate"] = found["cached_tokens"] / sum(cacheable) if cacheable else None
        return found

    def latencies(self) -> Row:
        values = defaultdict(list)
        for row in self.measured_ok:
            for name, (end, begin) in SPANS.items():
                if row.get(end) is not None and row.get(begin) is not None:
                    values[name].append(row[end] - row[begin])
            if _has_tpot(row):
                values["tpot_s"].append(_tpot(row))
            stamps = np.array(row.get("token_at_s") or [])
            values["itl_s"] += [gap for gap in np.diff(stamps).tolist() if gap > 0]
        percentiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
        return {
            f"{name} {p}": (float(np.quantile(values[name], share)) if values[name] else None, len(values[name]))
            for name in (*SPANS, "tpot_s", "itl_s")
            for p, share in percentiles.items()
        }

    def _limits(self) -> dict[str, dict[str, float]]:
        limits = defaultdict(dict)
        for row in self.rows["slos"]:
            limits[row["slo"]][row["metric"]] = row["limit_s"]
        return limits

    def goodput(self) -> Row:
        found = {}
        for slo, limit in self._limits().items():
            good = sum(_is_good(row, limit) for row in self.measured)
            n = len(self.measured)
            found |= {f"good_requests of {slo}": (good, n), f"good_share of {slo}": good / n if n else None}
        return found

    def lags(self) -> Row:
        rows = [row for row in self.measured if row.get("due_at_s") is not None]
        if not rows:
            return {"late_share": None}
        ok = [row for row in rows if row["status"] == "ok"]
        lag = np.array([row["sent_at_s"] - row["due_at_s"] for row in rows])
        ttft = [row["first_token_at_s"] - row["arrived_at_s"] for row in ok]
        tolerance = max(0.01, 0.05 * float(np.median(ttft)))
        late = int((lag > tolerance).sum())
        found = {
            "late_share": (late / len(rows), len(rows)),
            "send_lag_tolerance_s max": tolerance,
            "send_lag_s max": float(lag.max()),
            "kept_up": None if self.load["arrival"] == "all_at_once" else int(late <= max(1, 0.01 * len(rows))),
        }
        for p in (50, 95, 99):
            found[f"send_lag_s p{p}"] = float(np.percentile(lag, p))
        for p in (50, 99):
            for name, end in (("due_ttft_s", "first_token_at_s"), ("due_e2e_s", "finished_at_s")):
                found[f"{name} p{p}"] = float(np.percentile([row[end] - row["due_at_s"] for row in ok], p))
        return found

    def lives(self) -> list[Row]:
        """The expected rows of engine."""
        keys = sorted({(row["worker"], row["attempt"], row["engine_generation"]) for row in self.rows["engine_events"]})
        found = []
        for key in keys:
            found.append(self._expect_life(*key, [row for row in found if row["worker"] == key[0]]))
        return found

    def _expect_life(self, worker: str, attempt: int, generation: int, before: list[Row]) -> Row:
        def own(table: str) -> list[Row]:
            rows = self.requests if table == "answers" else self.rows[table]
            return [r for r in rows if (r.get("worker"), r.get("engine_generation")) == (worker, generation)]

        events, samples, answers = own("engine_events"), own("telemetry"), own("answers")
        answers = [row for row in answers if row["status"] in ("ok", "error")]
        first = {row["event"]: row for row in reversed(events)}
        opened, warmed, failed, closed = map(first.get, ("opened", "warmed_up", "failed", "closed"))
        newest = max(row["engine_generation"] for row in self.rows["engine_events"] if row["worker"] == worker)
        finished = [row["finished_at_s"] for row in answers if row["status"] == "ok"]
        busy = [row["at_s"] for row in samples if row["in_flight_requests"]]
        siblings = [row for row in before if row["attempt"] == attempt]
        if failed or closed:
            ending, over_s = ("failed", failed["at_s"]) if failed else ("closed", closed["at_s"])
        elif self.run["state"] == "running" and generation == newest and attempt == self.run["attempt"]:
            ending, over_s = "running", None
        else:
            ending, ends = "vanished", [row["finished_at_s"] for row in answers]
            over_s = max([row["at_s"] for row in events + samples] + ends)
        in_flight = json.loads(failed["details_json"]).get("in_flight_requests") if failed else 0
        began = ended = lost_s = recovery_s = None
        if finished:
            began, ended = min(row["arrived_at_s"] for row in answers if row["status"] == "ok"), max(finished)
        elif ending in ("failed", "vanished"):
            known = [row["arrived_at_s"] for row in answers] or ([warmed["at_s"]] if warmed else busy)
            began = min(known) if known else opened["at_s"] if in_flight else None
        if failed and in_flight != 0:  # or not known
            ended = max([failed["at_s"], *finished])
        if ending == "vanished" and busy:
            ended = max([*busy, *finished])
        if began is None or ended is None:
            began = ended = None
        if ending in ("failed", "vanished") and ended is not None:
            lost_s = ended - (max(finished) if finished else began)
        load_s, warmup_s = (event and event["duration_s"] for event in (opened, warmed))
        if siblings:
            ready_s = failed["at_s"] if failed and began is None else (warmed or opened)["at_s"]
            recovery_s = ready_s - siblings[-1]["ended_at_s"]
        return {
            "worker": worker, "engine_generation": generation, "attempt": attempt, "is_rebuild": bool(siblings),
            "earlier_reductions": sum(row["reductions"] for row in siblings), "ending": ending,
            "reductions": int("reduced" in first), "work_began_at_s": began, "work_ended_at_s": ended,
            "ended_at_s": over_s, "working_s": None if began is None else ended - began, "lost_s": lost_s,
            "load_s": load_s, "warmup_s": warmup_s, "recovery_s": recovery_s, "ok_requests": len(finished),
            "rebuild_s": load_s + (warmup_s or 0) if siblings and load_s else None,
            "error_requests": len(answers) - len(finished),
        }  # fmt: skip

    def speed(self) -> Row:
        """Metrics of engines, and throughput."""
        rows = self.lives()
        stretches = np.array([[r["work_began_at_s"], r["work_ended_at_s"]] for r in rows if r["working_s"] is not None])
        duration_s = float(np.ptp(stretches)) if len(stretches) else None
        working_s = _cover(stretches)
        starts = defaultdict(list)
        for row in rows:
            if not row["is_rebuild"] and row["load_s"]:
                starts[row["attempt"]].append(row)
        cold, *later = [starts[attempt] for attempt in sorted(starts)] or [[]]
        rebuilt = [row for row in rows if row["is_rebuild"]]
        found = {
            "duration_s": duration_s,
            "working_s": working_s,
            "downtime_s": None if duration_s is None else duration_s - working_s,
            "load_s": max((row["load_s"] for row in cold), default=None),
            "warmup_s": max((row["warmup_s"] for row in cold if row["warmup_s"]), default=None),
            "resume_load_s": _sum([max(r["load_s"] + (r["warmup_s"] or 0) for r in attempt) for attempt in later]),
            "rebuilds": len(rebuilt),
            "rebuild_s": _sum([row["rebuild_s"] for row in rebuilt]),
            "recovery_s": _sum([row["recovery_s"] for row in rebuilt]),
            "lost_s": _sum([row["lost_s"] for row in rows]),
            "reductions": sum(row["reductions"] for row in rows),
            "engine_failures": sum(row["ending"] == "failed" for row in rows),
            "vanished_engines": sum(row["ending"] == "vanished" for row in rows),
        }
        return found | self._throughput(working_s)

    def _throughput(self, working_s: float | None) -> Row:
        """Results that finish in a load's windows per second of these, or all per second with an engine at work."""
        if self.load and self.load["arrival"] == "concurrency":
            return {}
        counted, measured_s = self.ok, working_s
        if self.load and self.load["warmup_s"] + self.load["cooldown_s"] > 0:
            spans = {key: span for key, span in self.windows.items() if span[0] < span[1]}
            of = [(spans.get((row["worker"], row["engine_generation"]), (math.inf, 0)), row) for row in self.ok]
            counted = [row for (begins, ends), row in of if begins <= row["finished_at_s"] <= ends]
            measured_s = _cover(np.array(list(spans.values())))
        has_rate = measured_s and (counted or not self.measured_ok)
        rates = {"requests_per_s": counted, "output_tokens_per_s": counted}
        for slo, limit in self._limits().items():
            good = [row for row in counted if _is_good(row, limit)] if self.answered else None
            rates |= {f"good_requests_per_s of {slo}": good, f"good_output_tokens_per_s of {slo}": good}
        return {"measured_s": measured_s} | {
            name: sum(row["output_tokens"] if "tokens" in name else 1 for row in rows) / measured_s
            if has_rate and rows is not None
            else None
            for name, rows in rates.items()
        }


SPANS = {
    "ttft_s": ("first_token_at_s", "arrived_at_s"), "queue_s": ("scheduled_at_s", "queued_at_s"),
    "prefill_s": ("first_token_at_s", "scheduled_at_s"), "decode_s": ("last_token_at_s", "first_token_at_s"),
    "e2e_s": ("finished_at_s", "arrived_at_s"),
}  # fmt: skip


def _choose(answers: list[Row]) -> Row:
    """A result before an error, then the earliest."""
    keys = [(bool(row.get("error_kind")), row.get("finished_at_s") or math.inf) for row in answers]
    return answers[keys.index(min(keys))] if answers else {}


def _cover(spans: np.ndarray) -> float | None:
    """Seconds of the union of intervals, from every piece between two moments."""
    if not len(spans):
        return None
    moments = np.unique(spans)
    middles = (moments[1:] + moments[:-1]) / 2
    covered = ((spans[:, :1] < middles) & (middles < spans[:, 1:])).any(axis=0)
    return float(np.diff(moments)[covered].sum())


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _has_tpot(row: Row) -> bool:
    known = [row.get(name) for name in ("output_tokens", "first_token_at_s", "last_token_at_s")]
    return None not in known and known[0] > 1 and known[2] > known[1]


def _tpot(row: Row) -> float:
    return (row["last_token_at_s"] - row["first_token_at_s"]) / (row["output_tokens"] - 1)


def _is_good(row: Row, limit: dict[str, float]) -> bool:
    if row["status"] != "ok":
        return False
    spans = {name: row[end] - row[begin] for name, (end, begin) in SPANS.items() if name in ("ttft_s", "e2e_s")}
    spans["tpot_s"] = _tpot(row) if _has_tpot(row) else 0.0
    return all(spans[name] <= most for name, most in limit.items())


@pytest.fixture(scope="module")
def recomputed() -> dict[str, Recomputed]:
    return {run_id: Recomputed(draw_run(run_id, **{**CASES, **LIVES}[run_id])) for run_id in (*SMALL, *LIVES)}


UNTIMED = {"imported", "imported-without-times", "untimed"}
ENDED = [name for name in (*SMALL, *LIVES) if LIVES.get(name, {}).get("state") != "running"]


@pytest.mark.parametrize("part", ["counts", "latencies", "goodput", "lags", "speed"])
def test_metrics_are_those_of_plain_python(measured, recomputed, part):
    told = 0
    for run_id in ENDED:
        if part == "speed" and (run_id in UNTIMED or not recomputed[run_id].rows["engine_events"]):
            continue
        expected = getattr(recomputed[run_id], part)()
        told += len(expected)
        measured.expect_values(expected, run_id)
    assert told > (15 if part in ("goodput", "lags") else 200)


@pytest.mark.parametrize("run_id", ["poisson-windows", "closed-windows", "offline-errors"])
def test_histograms_have_each_measured_result_once(measured, recomputed, run_id):
    found = defaultdict(int)
    for row in measured.rows("latency_histogram", run_id=run_id):
        found[row["metric"]] += row["requests"]
    latencies = recomputed[run_id].latencies()
    assert found == {name: latencies[f"{name} p50"][1] for name in ("ttft_s", "tpot_s", "e2e_s")}


def test_engines_are_those_of_plain_python(measured, recomputed):
    rows = [{"run_id": run_id, **row} for run_id in LIVES for row in recomputed[run_id].lives()]
    assert {row["ending"] for row in rows} == {"closed", "failed", "vanished", "running"}
    assert {row["ok_requests"] > 0 for row in rows} == {True, False}
    for run_id in LIVES:
        own = [row for row in rows if row["run_id"] == run_id]
        measured.expect("engine", *own, run_id=run_id)
        if run_id in ENDED and measured.value("duration_s", run_id) is not None:
            lost_s = measured.value("lost_s", run_id)
            assert 0 <= measured.value("downtime_s", run_id) <= measured.value("duration_s", run_id), run_id
            assert lost_s is None or lost_s <= sum(row["working_s"] or 0 for row in own), run_id

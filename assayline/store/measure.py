"""The metrics of runs: the statements of `sql/metrics`, and the intervals that Python adds to their sums.

The requests and engines of runs become temporary tables, of which statements find one run's rows before all others.
Each statement returns rows of `metric_values`, or sums from which a function of `_INFER` makes them. Later statements
read the rows of earlier ones in `metric_value`.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from assayline.store.database import SQL_FOLDER, Row, list_models, read_rows
from assayline.store.views import quote_text

COLUMNS = ("source", "metric", "statistic", "detail", "value", "low", "high", "n", "unit", "higher_is_better")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
LATENCIES = ("ttft_s", "queue_s", "prefill_s", "decode_s", "tpot_s", "e2e_s")
TABLES = ("request", "engine", "stretch")
SPARSE = frozenset({"70_media", "80_energy", "90_cost", "91_answers", "95_reread"})
"""Statements whose rows without a value are not stored."""

_FACTS = """
    select 'times' as fact, count(arrived_at_s) as n from request
    union all select 'ok', count(*) from request where status = 'ok'
    union all select 'cuttable', count(truncated) from request
    union all select 'sends', count(due_at_s) from request
    union all select 'media', count(coalesce(images, audios, videos)) from request
    union all select 'errors', count(*) from request where status = 'error'
    union all select 'turns', count(turn_index) from request
    union all select 'drafts', count(acceptance_histogram) from request
    union all select 'sends', count(loop_lags_s) from raw.telemetry where run_id = getvariable('run_id')
    union all select 'stamps', count(token_at_s) from raw.completions where run_id = getvariable('run_id')
    union all select 'scorers', count(*) from raw.scorers where run_id = getvariable('run_id')
    union all
    select 'repeats', count(*) from raw.scores where run_id = getvariable('run_id') and repeat_index > 0
    union all select 'slos', count(*) from raw.slos where run_id = getvariable('run_id')
    union all select 'loads', count(*) from raw.loads where run_id = getvariable('run_id')
    union all
    select 'open_loads', count(*) from raw.loads where run_id = getvariable('run_id') and arrival <> 'concurrency'
    union all
    select 'gpus', count(*) from raw.device_telemetry where run_id = getvariable('run_id') and device <> 'host'
    union all select 'devices', count(*) from raw.device_telemetry where run_id = getvariable('run_id')
    union all select 'lengths', count(expected_output_tokens) from raw.requests where run_id = getvariable('run_id')
    union all select 'tokens', count(*) from raw.tokens where run_id = getvariable('run_id')
    union all
    select 'prices', count(spec_json ->> '$.price.currency') from raw.runs where run_id = getvariable('run_id')
    union all
    select 'totals', count(*) from raw.runs where run_id = getvariable('run_id') and purpose = 'totals'
"""
"""How much a run has of what statements and queries read: those without anything to read are skipped. As scalar
subqueries these would take ten times as long to plan."""

_NEEDS = {
    "30_in_flight": {"times"},
    "40_latency": {"ok", "times"},
    "41_gaps": {"stamps"},
    "50_scores": {"scorers"},
    "51_truncated": {"scorers", "cuttable"},
    "52_repeats": {"scorers", "repeats"},
    "60_goodput": {"slos"},
    "61_windows": {"loads"},
    "62_sending": {"sends"},
    "63_saturation": {"open_loads"},
    "70_media": {"media"},
    "80_energy": {"gpus"},
    "90_cost": {"prices"},
    "91_answers": {"prices", "scorers"},
    "95_reread": {"tokens"},
}
"""Facts of which a statement needs all; those that are not named always run."""


def list_facts(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """List what a run has any of, in a block of `run_tables`."""
    return {fact for fact, n in connection.execute(_FACTS).fetchall() if n}


def list_statements() -> dict[str, str]:
    """Return the statements by file name, in their order."""
    return {file.stem: file.read_text("utf-8") for file in sorted((SQL_FOLDER / "metrics").glob("*.sql"))}


@cache
def define_metrics() -> dict[str, str]:
    """Return what decides the values: a digest of statements, views and code, and the version of DuckDB."""
    from assayline.stats import clusters, intervals, rereads

    views = [model.statement for model in list_models().values() if model.folder in ("05_load", "10_staging")]
    code = [Path(inspect.getfile(module)).read_text("utf-8") for module in (clusters, intervals, rereads)]
    texts = [*list_statements().values(), *views, *code, Path(__file__).read_text("utf-8")]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    return {"sql": digest, "duckdb": ".".join(duckdb.__version__.split(".")[:2])}


@contextmanager
def run_tables(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> Iterator[None]:
    """Make temporary tables of the rows of runs in `request`, `engine` and `stretch`, and choose the first run.

    In the block, names find views of the rows of the chosen run (`choose_run`) before the views of all runs. In a
    transaction, which undoes them if the block fails.
    """
    choose_run(connection, run_ids[0])
    models = list_models()
    chosen = ", ".join(map(quote_text, run_ids))
    for table in TABLES:  # those of later tables read earlier ones
        query = models[table].statement.split(" as\n", 1)[1].rstrip().removesuffix(";")
        rows = f"select * from ({query}) where run_id in ({chosen})"  # noqa: S608 - ours
        connection.execute(f"create temp table {table}_of_runs as {rows}")
        connection.execute(f"create temp view {table} as from temp.{table}_of_runs")
    for table in TABLES:
        rows = f"from temp.{table}_of_runs where run_id = getvariable('run_id')"
        connection.execute(f"create or replace temp view {table} as {rows}")
    yield  # an error ends the transaction, which undoes them
    for table in TABLES:
        connection.execute(f"drop view temp.{table}")
        connection.execute(f"drop table temp.{table}_of_runs")


def choose_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Let statements read this run."""
    connection.execute("set variable run_id = ?", [run_id])


def read_reading(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Return the rows of `95_reread`: the answers that a run of kind reread has read, and its reference's engine."""
    choose_run(connection, run_id)
    return read_rows(connection, list_statements()["95_reread"])


def measure_runs(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> None:
    """Insert the rows of `metric_values` of runs, in the caller's transaction."""
    with run_tables(connection, *run_ids):
        for run_id in run_ids:
            choose_run(connection, run_id)
            _measure(connection, run_id)


def _measure(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    connection.execute("create or replace temp table metric_value as select * from raw.metric_values limit 0")
    known = list_facts(connection)
    rows = list[Row]()
    for name, statement in list_statements().items():
        if not _NEEDS.get(name, known) <= known:
            rows += _name_source(name, _MISSING.get(name, []))
            continue
        if ("metric_value" in statement or name in _READERS) and "totals" not in known:
            _insert_rows(connection, run_id, rows)
            rows = []
        found = read_rows(connection, statement)
        rows += _name_source(name, _INFER[name](connection, found) if name in _INFER else found)
    _insert_rows(connection, run_id, _replace_by_stated(connection, rows) if "totals" in known else rows)
    connection.execute("insert into raw.metric_values by name from temp.metric_value")
    connection.execute("drop table temp.metric_value")


def _replace_by_stated(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Return the numbers that the file of an imported run without requests states, and NULL for other metrics."""
    query = "select spec_json -> '$.imported.totals' from raw.runs where run_id = getvariable('run_id')"
    ((totals,),) = connection.execute(query).fetchall()
    stated = [{"source": "totals", **row} for row in json.loads(totals)]
    known = {(row["metric"], row["statistic"]) for row in stated}
    unknown = dict.fromkeys(("value", "low", "high", "n"))
    return stated + [{**row, **unknown} for row in rows if (row["metric"], row["statistic"]) not in known]


def _name_source(source: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows to store, with the name of their statement."""
    return [
        {"source": source, **row}
        for row in rows
        if row["value"] is not None or (source not in SPARSE and row["metric"] not in _ONLY_WITH_VALUE)
    ]


def _insert_rows(connection: duckdb.DuckDBPyConnection, run_id: str, rows: Sequence[Row]) -> None:
    if rows:
        columns = ", ".join(f"unnest(?::{kind}[])" for kind in _TYPES)
        connection.execute(
            f"insert into temp.metric_value (run_id, {', '.join(COLUMNS)}) select ?, {columns}",
            [run_id, *([row.get(column) for row in rows] for column in COLUMNS)],
        )


_TYPES = ("varchar", "varchar", "varchar", "varchar", "double", "double", "double", "bigint", "varchar", "boolean")
_READERS = frozenset({"61_windows", "91_answers"})
"""Statements whose functions read or change stored rows."""

_ONLY_WITH_VALUE = frozenset({"acceptance_length", "draft_acceptance"})


def _row(metric: str, statistic: str, value: Any, n: Any, unit: str, is_better: bool | None, **more: Any) -> Row:
    named = {"metric": metric, "statistic": statistic, "value": _number(value), "n": None if n is None else int(n)}
    return {**named, "unit": unit, "higher_is_better": is_better, **more}


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _read_arrival(connection: duckdb.DuckDBPyConnection) -> str | None:
    rows = connection.execute("select arrival from raw.loads where run_id = getvariable('run_id')").fetchall()
    return rows[0][0] if rows else None


def _bound_latencies(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Add intervals to percentiles of latencies: ranks from the batches, and then the values of these ranks."""
    from assayline.stats.intervals import BATCHES, bound_percentile, count_effective_requests, has_percentile_bounds

    is_open = _read_arrival(connection) not in (None, "concurrency", "all_at_once")
    by_metric = {metric: list(batches) for metric, batches in groupby(rows, lambda row: row["metric"])}
    ranks: dict[tuple[str, str], tuple[int, int]] = {}
    for metric, batches in by_metric.items():
        if len(batches) < BATCHES:
            continue
        sizes = [batch["n"] for batch in batches]
        below = np.array([batch["below"] for batch in batches]).T
        effective = [count_effective_requests(counts, sizes) for counts in below]
        for (statistic, share), worth in zip(PERCENTILES.items(), effective, strict=True):
            n = sum(sizes)
            is_shown = has_percentile_bounds(share, n, effective[0], is_open=is_open)
            if is_shown and (found := bound_percentile(share, n, worth)):
                ranks[metric, statistic] = found
    counts = {metric: sum(batch["n"] for batch in batches) for metric, batches in by_metric.items()}
    ends = _read_ranks(connection, ranks, counts)
    found_rows = []
    for metric in LATENCIES:
        batches = by_metric.get(metric, [])
        for place, statistic in enumerate(PERCENTILES):
            value = batches[0]["percentiles"][place] if batches else None
            low, high = ends.get((metric, statistic), (None, None))
            found_rows.append(_row(metric, statistic, value, counts.get(metric, 0), "s", False, low=low, high=high))
    return found_rows


def _read_ranks(
    connection: duckdb.DuckDBPyConnection, ranks: dict[tuple[str, str], tuple[int, int]], counts: dict[str, int]
) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the values of two ranks, from 1, of each latency and percentile."""
    if not ranks:
        return {}
    places = {
        metric: [(rank - 0.5) / n for (other, _), both in ranks.items() if other == metric for rank in both]
        for metric, n in counts.items()
    }
    columns = [f"quantile_disc({metric}, {shares}::double[])" for metric, shares in places.items() if shares]
    query = f"select {', '.join(columns)} from request where status = 'ok' and phase = 'measured'"  # noqa: S608
    (found,) = connection.execute(query).fetchall()
    values = iter([value for column in found for value in column])
    ordered = [key for metric in places for key in ranks if key[0] == metric]
    return {key: (next(values), next(values)) for key in ordered}


def _infer_scores(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Make means of scores with standard errors and intervals, from the sums over clusters of one size."""
    query = "select scorer from raw.scorers where run_id = getvariable('run_id') order by ordinal, scorer"
    scorers = [scorer for (scorer,) in connection.execute(query).fetchall()]
    found: list[Row] = []
    for metric in ("accuracy", "majority_vote"):
        for scorer in scorers:
            parts = [row for row in rows if (row["metric"], row["scorer"]) == (metric, scorer)]
            if metric == "accuracy":
                found += _make_accuracy(scorer, parts)
            elif max((row["most_samples"] for row in parts), default=0) > 1:
                found += _make_mean(metric, scorer, parts)
    return found


def _add_up(rows: Sequence[Row], name: str) -> float:
    return float(sum(row[name] for row in rows))


def _make_accuracy(scorer: str, parts: Sequence[Row]) -> list[Row]:
    if not parts:
        names = (("accuracy", "share"), ("accuracy_without_errors", "share"), ("scored_prompts", "prompts"))
        statistics = {"scored_prompts": "total"}
        return [
            _row(name, statistics.get(name, "mean"), 0 if name == "scored_prompts" else None, 0, unit,
                 None if name == "scored_prompts" else True, detail=scorer)
            for name, unit in names
        ]  # fmt: skip
    answered, samples = _add_up(parts, "answered"), _add_up(parts, "samples")
    without = _add_up(parts, "answered_total") / answered if answered else None
    return [
        *_make_mean("accuracy", scorer, parts, samples),
        _row("accuracy_without_errors", "mean", without, _add_up(parts, "answered_samples"), "share", True,
             detail=scorer),
        _row("score_sum", "total", _add_up(parts, "score_sum"), samples, "answers", True, detail=scorer),
        _row("right_samples", "total", _add_up(parts, "right_samples"), samples, "samples", True, detail=scorer),
        _row("scored_prompts", "total", parts[0]["prompts"], samples, "prompts", None, detail=scorer),
    ]  # fmt: skip


def _make_mean(metric: str, scorer: str, parts: Sequence[Row], samples: float | None = None) -> list[Row]:
    """Make the rows of a mean over prompt rows: value with interval, standard error, and what they are worth."""
    from assayline.stats.clusters import bound_share, count_effective_samples, spread_clusters

    size, count, total, total_squares = (
        np.array([row[name] for row in parts], float) for name in ("size", "clusters", "total", "total_squares")
    )
    spread = spread_clusters(np.zeros(len(parts), np.intp), size, total, count=count, square=total_squares)
    mean, n, clusters = float(spread.mean[0]), int(spread.n[0]), int(spread.clusters[0])
    effective, error = float(spread.effective_clusters[0]), float(spread.standard_error[0])
    is_binary = not _add_up(parts, "partial")
    variance = mean * (1 - mean) if is_binary else max(0.0, _add_up(parts, "squares") / n - mean**2)
    low, high = bound_share(mean, variance, n, clusters, effective, error, is_binary=is_binary)
    worth = count_effective_samples(variance, n, clusters, effective, error)
    counted = n if samples is None else samples
    return [
        _row(metric, "mean", mean, counted, "share", True, detail=scorer, low=_number(low), high=_number(high)),
        _row("standard_error", metric, error, n, "share", None, detail=scorer),
        _row("effective_n", metric, worth, n, "prompts", None, detail=scorer),
    ]


def _infer_repeats(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Make pass@k from clusters of prompts with the same numbers of samples and right samples."""
    from assayline.stats.intervals import estimate_pass, list_k

    found = []
    for (scorer, most), group in groupby(rows, lambda row: (row["scorer"], row["most_samples"])):
        clusters = list(group)
        for k in list_k(most):
            parts, prompts, is_whole = [], 0, True
            for row in clusters:
                chances = [estimate_pass(prompt["samples"], prompt["right"], k) for prompt in row["prompts"]]
                known = [chance for chance in chances if chance is not None]
                is_whole &= len(known) == len(chances)
                prompts += len(known) * row["clusters"]
                total, partial_rows = sum(known), sum(chance not in (0, 1) for chance in known)
                sums = {"size": len(known), "total": total, "total_squares": total**2, "partial": partial_rows}
                squares = sum(chance**2 for chance in known)
                weighted = {name: value * row["clusters"] for name, value in {**sums, "squares": squares}.items()}
                parts.append({**weighted, "size": len(known), "clusters": row["clusters"]})
            if is_whole:
                found += _make_mean(f"pass@{k}", scorer, parts)
            else:
                found.append(_row(f"pass@{k}", "mean", None, prompts, "share", True, detail=scorer))
    return found


def _bound_rates(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Set the intervals of throughput and goodput, which earlier statements stored, from 20 windows of sending."""
    from assayline.stats.intervals import BATCHES, RESULTS_FOR_RATES, bound_rate

    arrival = _read_arrival(connection)
    if arrival == "all_at_once":
        return []
    for detail, group in groupby(sorted(rows, key=lambda row: str(row["detail"])), lambda row: row["detail"]):
        windows = {row["number"]: row for row in group}
        if sum(row["requests"] for row in windows.values()) < RESULTS_FOR_RATES[arrival == "concurrency"]:
            continue
        for column in ("requests", "output_tokens", "total_tokens"):
            amounts = [float((windows.get(number) or {}).get(column) or 0) for number in range(BATCHES)]
            half = bound_rate(amounts)
            name = f"{'' if detail is None else 'good_'}{column}_per_s"
            if half is not None:
                connection.execute(
                    "update temp.metric_value set low = value * (1 - $half), high = value * (1 + $half) "
                    "where metric = $name and detail is not distinct from $detail",
                    {"half": half, "name": name, "detail": detail},
                )
    return []


def _judge_load(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Make the metrics of an open-loop load: its rate, and whether requests in flight accumulated."""
    from assayline.stats.intervals import is_growing

    [found] = rows
    changes, slope = found["changes"], found["slope"]
    sent = changes["sent"] or 0
    is_saturated: bool | None = None
    if found["was_ended"]:
        is_saturated = True
    elif found["arrival"] != "all_at_once" and slope["engines"]:
        is_saturated = is_growing(changes["change"], changes["squares"], 10 * slope["engines"], sent)
    return [
        _row("offered_requests_per_s", "mean", found["offered_requests_per_s"], None, "requests/s", None),
        _row("finished_requests_per_s", "mean", found["finished_requests_per_s"], None, "requests/s", None),
        _row("in_flight_growth_per_s", "mean", slope["growth_per_s"], None, "requests/s", None),
        _row("is_saturated", "mean", is_saturated, None, "flag", None),
        _row("judged_s", "total", slope["judged_s"], sent, "s", None),
    ]


def _price_answers(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Make the cost per right answer with its interval, for other prompts at the speed of this run."""
    from assayline.stats.intervals import bound_ratio_of_sums

    [found] = rows
    right, share = found["right_answers"], found["scored_share"]
    factor = None
    if not found["unknown"] and found["moves"] is not None:
        shares = found["square_shares"], found["fourth_shares"]
        factor = bound_ratio_of_sums(found["moves"], found["clusters"], *shares)
    costs = connection.execute(
        "select metric, value, unit from temp.metric_value where metric in ('working_cost', 'cost')"
    ).fetchall()
    made = []
    for metric, cost, unit in costs:
        value = cost * share / right if right and share is not None else None
        ends = {"low": value / factor, "high": value * factor} if value is not None and factor else {}
        name = "cost_per_right_answer" if metric == "working_cost" else "full_cost_per_right_answer"
        made.append(_row(name, "mean", value, None, f"{unit}/correct answer", False, **ends))
    return made


def _compare_readings(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> list[Row]:
    """Make the metrics of a reading of another engine's answers; none for a reading that is compared with nothing."""
    from assayline.stats.rereads import average, read_answers

    if not rows:
        return []
    clusters, answers = [row["cluster"] for row in rows], len(rows)
    tokens, others = int(_add_up(rows, "tokens")), int(_add_up(rows, "other_tokens"))
    parted = sorted(row["first_other"] for row in rows if row["first_other"] is not None)
    kl = average([row["kl"] for row in rows], clusters).value
    change = average([row["nll_change"] for row in rows], clusters)
    changes = np.concatenate([row["logprob_changes"] for row in rows])
    low = high = None
    found = []
    if reading := read_answers(rows):
        (low, high), (ratio, least, most) = reading.ends, reading.ratio
        found = [
            _row("kl_floor", "mean", reading.floor, answers, "nats/token", False),
            _row("kl_ratio", "mean", ratio, answers, "ratio", False, low=_number(least), high=_number(most)),
        ]
    ends = {"low": _number(change.value - change.half), "high": _number(change.value + change.half)}
    return [
        _row("kl", "mean", kl, answers, "nats/token", False, low=_number(low), high=_number(high)),
        *found,
        _row("same_top", "mean", 1 - others / tokens, tokens, "share", True),
        _row("nll_change", "mean", change.value, answers, "nats/token", None, **ends),
        _row("logprob_change", "p99.9", np.quantile(changes, 0.999), tokens, "nats", False),
        _row("other_tokens", "total", others, tokens, "tokens", None),
        _row("other_answers", "total", len(parted), answers, "answers", None),
        _row("first_other_token", "p50", parted[len(parted) // 2] if parted else None, len(parted), "place", None),
    ]


_INFER: dict[str, Callable[[duckdb.DuckDBPyConnection, Sequence[Row]], list[Row]]] = {
    "40_latency": _bound_latencies,
    "50_scores": _infer_scores,
    "52_repeats": _infer_repeats,
    "61_windows": _bound_rates,
    "63_saturation": _judge_load,
    "91_answers": _price_answers,
    "95_reread": _compare_readings,
}


_MISSING: dict[str, list[Row]] = {
    "30_in_flight": [_row("in_flight_requests", name, None, None, "requests", None) for name in ("mean", "max")],
    "40_latency": [_row(metric, name, None, 0, "s", False) for metric in LATENCIES for name in PERCENTILES],
    "41_gaps": [_row("itl_s", name, None, 0, "s", False) for name in PERCENTILES],
}
"""Rows without a value of statements that did not run: metrics that every run has."""

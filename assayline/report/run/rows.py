"""Rows that a run report shows, few enough for a page whatever the size of the run.

Metrics are read from metric_values; queries of `sql/queries` are what a page alone needs. Texts are cut to
`TEXT_CHARACTERS` and come with their full length, because one answer may be megabytes.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from assayline.errors import StoreError
from assayline.store.database import SQL_FOLDER, Connection, Row, read_rows, transaction
from assayline.store.measure import PERCENTILES, list_facts, run_tables
from assayline.store.metrics import ensure_metrics, list_warnings, read_metric_table
from assayline.words import count

Values = dict[tuple[str, str | None], Row]
"""Rows of metric_values by metric and statistic, and scorer or SLO."""
COUNTS = ("requests", "rows", "engines", "times", "prompts", "tokens", "workers", "attempts", "steps", "GPUs")
"""Units of whole numbers."""


def say_answered(summary: Row) -> str:
    """Return how many requests were answered."""
    if summary["expected_requests"] is None:
        return "Its file states totals alone"
    return f"{summary['ok_requests']:,} of {count(summary['expected_requests'], 'request')} answered"


def read_values(connection: Connection, run_id: str) -> Values:
    """Return the stored metrics of a run by `metric statistic` and detail. Counts are whole numbers."""
    rows = read_rows(connection, "select * from metric_values where run_id = ?", run_id)
    for row in rows:
        if row["unit"] in COUNTS and row["statistic"] == "total" and row["value"] is not None:
            row["value"] = int(row["value"])
    return {(f"{row['metric']} {row['statistic']}", row["detail"]): row for row in rows}


def _summarize(values: Values, accuracy: list[Row]) -> Row:
    """Return the metrics that a run has once by name, and the mean of its first scorer."""
    summary = {
        row["metric"]: row["value"] for (name, detail), row in values.items()
        if detail is None and name.endswith((" total", " mean"))
    }  # fmt: skip
    if summary["expected_requests"] is None:  # a file of totals alone
        summary |= {name: summary.get(name) or 0 for name in ("unasked_rows", "error_requests")}
    first = next((row for row in accuracy if row["mean"] is not None), dict.fromkeys(("scorer", "mean")))
    named = {name: first.get(f"mean_{name}") for name in ("low", "high")}
    return {
        **summary,
        "scorer": first["scorer"],
        "accuracy": first["mean"],
        "accuracy_low": named["low"],
        "accuracy_high": named["high"],
        "scored_samples": first.get("samples", 0),
    }


def list_percentiles(values: Values, *metrics: str) -> list[Row]:
    """List percentiles of latencies with their intervals, in seconds."""
    found = [
        (metric, percentile, values.get((f"{metric} {statistic}", None)))
        for metric in metrics
        for statistic, percentile in PERCENTILES.items()
    ]
    return [
        {"metric": metric, "percentile": percentile, "value_s": row["value"], "low_s": row["low"],
         "high_s": row["high"], "n": row["n"] or 0}
        for metric, percentile, row in found if row
    ]  # fmt: skip


def list_repeats(values: Values, wanted: str) -> list[Row]:
    """List pass@k, or the majority vote, by scorer."""
    found = []
    for (name, scorer), row in values.items():
        if name.startswith(wanted):
            error = values.get((f"standard_error {row['metric']}", scorer))
            found.append({
                "scorer": scorer, "k": int(row["metric"].partition("@")[2] or 0), "mean": row["value"],
                "standard_error": error and error["value"], "mean_low": row["low"], "mean_high": row["high"],
                "prompts": row["n"],
            })  # fmt: skip
    return sorted(found, key=lambda row: (row["scorer"], row["k"]))


def read_query(connection: Connection, name: str) -> list[Row]:
    """Return the rows of a query of `sql/queries` on the tables of a run."""
    return read_rows(connection, _read_sql(name))


def _read_sql(name: str) -> str:
    return (SQL_FOLDER / "queries" / f"{name}.sql").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class LoadRows:
    """Rows of a run with a load."""

    load: Row
    goodput: list[Row]
    send_lag: Row | None
    """None in a closed loop, like the next."""
    saturation: Row | None
    clients: list[Row]
    end: Row | None
    """The event load_ended, if sending stopped before the last prompt."""
    stretches: list[Row]
    """Measured interval of each engine, between warm-up and cool-down; empty without these periods."""
    gaps: list[Row]
    """Percentiles of ITL, the gaps between token events, if their times were recorded."""


def read_load(connection: Connection, run_id: str, values: Values) -> LoadRows | None:
    """Read the load of a stored run; None if it has none."""

    def of_run(query: str) -> list[Row]:
        return read_rows(connection, query, run_id)

    load = _first(of_run("select * from loads where run_id = ?"))
    if load is None:
        return None

    def read(metric: str, statistic: str = "mean", detail: str | None = None) -> Any:
        row = values.get((f"{metric} {statistic}", detail))
        return row and row["value"]

    goodput = [
        {
            **row,
            "requests": values["good_share mean", row["slo"]]["n"],
            "good_requests": read("good_requests", "total", row["slo"]),
            **{
                name: read(name, "mean", row["slo"])
                for name in ("good_share", "good_requests_per_s", "good_output_tokens_per_s")
            },
        }
        for row in of_run(_LIMITS)
    ]
    lag = {
        **{f"{statistic}_s": read("send_lag_s", statistic) for statistic in ("p50", "p95", "p99", "max")},
        "tolerance_s": read("send_lag_tolerance_s", "max"),
        "late_share": read("late_share"),
        "kept_up": _flag(read("kept_up")),
        "due_ttft_p50_s": read("due_ttft_s", "p50"),
        "due_ttft_p99_s": read("due_ttft_s", "p99"),
    }
    saturation = {
        "arrival": load["arrival"],
        "is_saturated": _flag(read("is_saturated")),
        **{
            name: read(name) for name in ("in_flight_growth_per_s", "offered_requests_per_s", "finished_requests_per_s")
        },
    }
    return LoadRows(
        load=load,
        goodput=goodput,
        send_lag=None if lag["p99_s"] is None else lag | {"max_s": lag["max_s"]},
        saturation=None if load["arrival"] == "concurrency" else saturation,
        clients=read_query(connection, "client_health"),
        end=_first(of_run("select * from engine_events where run_id = ? and event = 'load_ended' order by at_s")),
        stretches=of_run(
            "select * from load_stretch where run_id = ? and has_windows and stretch_s is not null order by begins_at_s"
        ),
        gaps=[{**row, "gaps": row["n"]} for row in list_percentiles(values, "itl_s") if row["n"]],
    )


def _flag(value: float | None) -> bool | None:
    return None if value is None else bool(value)


def _first(rows: list[Row]) -> Row | None:
    return next(iter(rows), None)


SLOWEST = 5
EVENTS = 100
ENGINES = 50
TURNS = 50
ERROR_KINDS = 20
VALUES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRows:
    """Rows of one run, each list in display order."""

    run: Row
    summary: Row
    metrics: list[Row]
    """As in the table printed at the end of a run."""
    accuracy: list[Row]
    pass_at_k: list[Row]
    """Rows only if prompts were repeated; likewise `majority_vote`."""
    majority_vote: list[Row]
    percentiles: list[Row]
    turns: list[Row]
    """Turns of conversations."""
    histogram: list[Row]
    activity: list[Row]
    telemetry: list[Row]
    """Device and scheduler telemetry, by the slices of `activity`."""
    devices: list[Row]
    engines: list[Row]
    drafts: list[Row]
    """Positions of speculative decoding's drafts, if there were any."""
    forecast: Row | None
    """Accuracy of the expected output lengths, if there were any."""
    first_opened: Row | None
    """`details_json` that the first engine reported when it opened."""
    events: list[Row]
    """Engine events, without the openings and closings of every run."""
    errors: list[Row]
    slowest: list[Row]
    groups: list[Row]
    """Mean scores by finish reason and metadata, and frequent wrong answers."""
    warnings: list[str]
    """Warnings about the answers; see `list_warnings`."""
    load: LoadRows | None
    """None for a run without a load."""
    energy: Row | None
    """None without GPU samples."""
    cost: Row
    """Without a currency if the run has no price."""


def read_report(connection: Connection, run_id: str) -> ReportRows:
    """Read the report rows of a stored run, and store its metrics if they are missing.

    Raises StoreError if the run is missing.
    """
    ensure_metrics(connection, [run_id])
    with transaction(connection), run_tables(connection, run_id):
        rows = _read_rows(connection, run_id)
        connection.execute("drop table temp.activity")
    return replace(rows, metrics=read_metric_table(connection, run_id))


def _read_rows(connection: Connection, run_id: str) -> ReportRows:
    """Read what depends on the run alone: all but its metrics, which count its judges."""

    def of_run(query: str, *values: Any) -> list[Row]:
        return read_rows(connection, query, run_id, *values)

    values = read_values(connection, run_id)
    runs = of_run("select runs.*, obstacle from runs left join run_conditions using (run_id) where run_id = ?")
    if not runs:
        raise StoreError(f"Run {run_id} is not in the database. hint: list the runs with `from run`.")
    accuracy = of_run("select * from accuracy where run_id = ? order by ordinal, scorer")
    facts = list_facts(connection)
    devices = read_query(connection, "device_use")[:ENGINES] if "devices" in facts else []
    connection.execute(f"create or replace temp table activity as {_read_sql('activity')}")
    activity = read_rows(connection, "from activity order by begins_at_s")
    return ReportRows(
        run=runs[0],
        summary=_summarize(values, accuracy),
        metrics=[],
        accuracy=accuracy,
        pass_at_k=list_repeats(values, "pass@"),
        majority_vote=list_repeats(values, "majority_vote"),
        percentiles=list_percentiles(values, "ttft_s", "tpot_s", "e2e_s"),
        turns=read_query(connection, "turn_latency")[:TURNS] if "turns" in facts else [],
        histogram=read_query(connection, "latency_histogram"),
        activity=activity,
        telemetry=read_query(connection, "telemetry_activity") if activity else [],
        devices=devices,
        engines=of_run("select * from engine where run_id = ? order by worker, engine_generation limit ?", ENGINES),
        drafts=read_query(connection, "draft_use") if "drafts" in facts else [],
        forecast=_first(read_query(connection, "length_forecast")) if "lengths" in facts else None,
        first_opened=next(iter(of_run(_FIRST_OPENED)), None),
        events=of_run(_EVENTS, EVENTS),
        errors=of_run(_ERRORS, ERROR_KINDS) if "errors" in facts else [],
        slowest=of_run(_SLOWEST, SLOWEST),
        groups=of_run(_GROUPS, VALUES) if accuracy else [],
        warnings=list_warnings(connection, run_id),
        load=read_load(connection, run_id, values),
        energy=_read_energy(values, devices),
        cost=_read_cost(values, json.loads(runs[0]["spec_json"])),
    )


def _read_energy(values: Values, devices: list[Row]) -> Row | None:
    """Return the energy of a run's GPUs; None without samples of one."""
    if ("gpus total", None) not in values:
        return None
    names = ("gpus", "energy_joules", "energy_error_joules", "idle_joules")
    found = {name: (values.get((f"{name} total", None)) or {}).get("value") for name in names}
    sources = {row["energy_source"] for row in devices if row["device"] != "host"}
    return {**found, "energy_source": "counter" if sources == {"counter"} else "power"}


COSTS = (
    "cost", "working_cost", "cost_per_million_output_tokens", "full_cost_per_million_output_tokens",
    "cost_per_thousand_requests", "full_cost_per_thousand_requests", "cost_per_right_answer",
    "full_cost_per_right_answer", "energy_per_output_token_joules",
)  # fmt: skip


def _read_cost(values: Values, spec: dict[str, Any]) -> Row:
    rows = {row["metric"]: row for (_, detail), row in values.items() if detail is None and row["metric"] in COSTS}
    each = rows.get("cost_per_right_answer") or {}
    return {
        "currency": (spec.get("price") or {}).get("currency"),
        **{name: (rows.get(name) or {}).get("value") for name in COSTS},
        **{f"cost_per_right_answer_{end}": each.get(end) for end in ("low", "high")},
    }


_LIMITS = """
    select
        slo,
        max(limit_s) filter (metric = 'ttft_s') as ttft_limit_s,
        max(limit_s) filter (metric = 'tpot_s') as tpot_limit_s,
        max(limit_s) filter (metric = 'e2e_s') as e2e_limit_s
    from slos
    where run_id = ?
    group by slo
    order by slo
"""
_FIRST_OPENED = """
    select * from engine_events where run_id = ? and event = 'opened' order by at_s, worker limit 1
"""
_EVENTS = """
    select worker, attempt, engine_generation, event, at_s, left(message, 300) as message
    from engine_events
    where run_id = ? and event in ('failed', 'reduced', 'isolated', 'restored', 'grown', 'idle')
    order by at_s, worker, engine_generation
    limit ?
"""
_ERRORS = """
    select
        error_kind,
        worker,
        count(*) as error_requests,
        count(*) / (select count(*) from request where run_id = $1) as error_share,
        left(arg_min(error_message, row(coalesce(finished_at_s, arrived_at_s, 'infinity'), request_id)), 300)
            as example_message,
        min(coalesce(finished_at_s, arrived_at_s)) as first_at_s,
        max(coalesce(finished_at_s, arrived_at_s)) as last_at_s
    from request
    where run_id = $1 and status = 'error'
    group by error_kind, worker
    order by error_requests desc, error_kind, worker
    limit $2
"""
_GROUPS = """
    with samples as (
        select scorer, prompt_id, occurrence, scores.value as score, finish_reason, coalesce(extracted, answer) as taken
        from (from scores where run_id = $1) as scores
        join (from stg_samples where run_id = $1) using (prompt_id, occurrence, repeat_index)
        where scorer = (select scorer from scorers where run_id = $1 order by ordinal limit 1)
    ),
    properties as (
        select scorer, score, 0 as place, 'finish reason' as property, finish_reason as value from samples
        union all
        select
            scorer, score, 1, property, metadata_json ->> ('/' || replace(replace(property, '~', '~0'), '/', '~1'))
        from samples
        join (
            select distinct prompt_id, occurrence, metadata_json, unnest(json_keys(metadata_json)) as property
            from prompts
            where run_id = $1
        ) using (prompt_id, occurrence)
        union all
        select scorer, score, 2, 'wrong answer', taken from samples where score = 0
    )
    select
        scorer,
        property,
        left(value, 200) as value,
        count(*) as samples,
        count(*) filter (score = 0) as wrong_samples,
        avg(score) as mean_value
    from properties
    where value is not null
    group by place, scorer, property, properties.value
    qualify place = 0
        or place = 1 and count(*) over (partition by place, property) between 2 and $2
        or place = 2 and count(*) > 1
            and row_number() over (partition by place, property order by count(*) desc, properties.value) <= $2
    order by place, property, mean_value, samples desc, properties.value
"""
"""Samples by finish reason, by each metadata column with few values, and the most frequent wrong answers."""
_SLOWEST = """
    select request_id, prompt_id, e2e_s, ttft_s, tpot_s, queue_s, prompt_tokens, output_tokens, finish_reason
    from request
    where run_id = ? and status = 'ok' and e2e_s is not null
    order by e2e_s desc, request_id
    limit ?
"""

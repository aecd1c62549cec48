"""A run's metrics: rows of the models that are kept as a table when it has ended, and its metric table.

Whoever changes rows of a run calls `forget_metrics` in the same transaction. So what is kept is never older than what
it was computed from, and a run that is under way, taken up again or scored anew is computed when it is read.

    with stage_run(connection, run_id):
        keep_metrics(connection, run_id)

No metric is computed here. Each number of the metric table is a cell of a view in `sql/models/`, whose comment holds
its definition, and each row says which: `source` is `view.column`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb

from assayline.errors import StoreError
from assayline.store.database import Row, list_models, read_rows, transaction
from assayline.store.views import KEPT, LIVE, ModelFile, list_tables_of_runs, quote_text, read_model, work_in

MANY_REQUESTS = 50_000
"""A run of more is computed in pieces where a model says so, for little memory; a smaller one at once, for time."""


def keep_metrics(connection: duckdb.DuckDBPyConnection, run_id: str) -> bool:
    """Computes and stores the run's rows of every model that is kept, in a transaction of its own.

    Returns whether they are kept: they are not where a request or an answer is there twice, as readers then have to
    leave one out. Raises StoreError if there is no such run.
    """
    if not connection.execute("select 1 from main.runs where run_id = ?", [run_id]).fetchall():
        raise StoreError(f"There is no run {run_id} in the database. `from runs` lists those that there are.")
    with transaction(connection):
        forget_metrics(connection, run_id)
        models = [read_model(file) for file in list_models()]
        if any(_leaves_rows_out(connection, model, run_id) for model in models if model.table):
            return False
        tables = _list_tables(connection)
        kept = [model for model in models if model.name in tables]
        requests = connection.execute("select count(*) from main.requests where run_id = ?", [run_id]).fetchall()[0][0]
        with _read_alone(connection, run_id):
            for model in kept:
                _keep_model(connection, model, run_id, in_pieces=requests > MANY_REQUESTS)
            for model in kept:
                connection.execute(f"drop view temp.{model.name}")
        now = datetime.now(UTC).replace(tzinfo=None)
        connection.execute(f"insert into {KEPT}.kept_runs values (?, ?)", [run_id, now])  # noqa: S608 - names are ours
    return True


def forget_metrics(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """The run's metrics are computed when they are read, from now on. Inside the caller's transaction."""
    if not is_kept(connection, run_id):
        return
    for table in _list_tables(connection):
        connection.execute(f"delete from {KEPT}.{table} where run_id = ?", [run_id])  # noqa: S608 - names are ours


def is_kept(connection: duckdb.DuckDBPyConnection, run_id: str) -> bool:
    """Whether the run's metrics are kept."""
    return bool(connection.execute(f"select 1 from {KEPT}.kept_runs where run_id = ?", [run_id]).fetchall())  # noqa: S608


@contextmanager
def read_kept(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> Iterator[None]:
    """Meanwhile, if the metrics of all these runs are kept, views named without a schema are read where they are kept.

    For queries that ask of these runs and no others. The same rows would come from `main`, but planning the part that
    computes takes longer than reading the other: a tenth of a second for one view, and two for a comparison of speeds.
    """
    with work_in(connection, KEPT) if run_ids and _are_kept(connection, run_ids) else nullcontext():
        yield


@contextmanager
def read_all_kept(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> Iterator[None]:
    """The same for queries that ask of these runs and of all that have ended: if none is left to be computed."""
    are_kept = _are_kept(connection, run_ids) and not list_unkept(connection)
    with work_in(connection, KEPT) if are_kept else nullcontext():
        yield


@contextmanager
def read_benchmark_kept(connection: duckdb.DuckDBPyConnection, benchmark_id: str) -> Iterator[None]:
    """The same for queries that ask of the runs of a benchmark that are completed."""
    completed = "select run_id from main.runs where benchmark_id = ? and state = 'completed'"
    rows = connection.execute(completed, [benchmark_id]).fetchall()
    with read_kept(connection, *(run_id for (run_id,) in rows)):
        yield


def _are_kept(connection: duckdb.DuckDBPyConnection, run_ids: tuple[str, ...]) -> bool:
    kept = f"select count(*) from {KEPT}.kept_runs where list_contains(?::varchar[], run_id)"  # noqa: S608
    return connection.execute(kept, [list(run_ids)]).fetchall() == [(len(set(run_ids)),)]


def list_unkept(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Runs that have ended and whose metrics are not kept, oldest first."""
    unkept = f"from main.runs anti join {KEPT}.kept_runs using (run_id) where state <> 'running'"
    rows = connection.execute(f"select run_id {unkept} order by started_at, run_id").fetchall()
    return [run_id for (run_id,) in rows]


def _list_tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    tables = "select table_name from duckdb_tables() where schema_name = ? and database_name = current_database()"
    return [name for (name,) in connection.execute(tables, [KEPT]).fetchall()]


def _leaves_rows_out(connection: duckdb.DuckDBPyConnection, model: ModelFile, run_id: str) -> bool:
    counts = [
        connection.execute(f"select count(*) from {relation} where run_id = ?", [run_id]).fetchall()  # noqa: S608
        for relation in (f"main.{model.table}", f"{LIVE}.{model.name}")
    ]
    return counts[0] != counts[1]


def _keep_model(connection: duckdb.DuckDBPyConnection, model: ModelFile, run_id: str, in_pieces: bool) -> None:
    """Stores the model's rows, and lets the models after it read them instead of computing them again."""
    insert = f"insert into {KEPT}.{model.name} select * from {LIVE}.{model.name} where run_id = ?"  # noqa: S608
    if model.column and in_pieces:
        for value in model.values:
            connection.execute(f"{insert} and {model.column} = ?", [run_id, value])
    else:
        connection.execute(insert, [run_id])
    _narrow(connection, KEPT, model.name, run_id)


def _narrow(connection: duckdb.DuckDBPyConnection, schema: str, name: str, run_id: str) -> None:
    """Until the view is dropped, a name without a schema has this run's rows of it and no others."""
    of_run = f"select * from {schema}.{name} where run_id = {quote_text(run_id)}"  # noqa: S608 - names are ours
    connection.execute(f"create temp view {name} as {of_run}")


@contextmanager
def _read_alone(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Meanwhile, raw tables named without a schema have this run's rows and no others; they cannot be written.

    Views say the same of the run, with a fifth to a third less to plan: none asks which runs are kept.
    """
    here = connection.execute("select current_database()").fetchall()[0][0].replace('"', '""')
    tables = list_tables_of_runs(connection)
    for table in tables:  # with the database's name, as `main.runs` is the temporary view, too
        _narrow(connection, f'"{here}".main', table, run_id)
    try:
        yield
    finally:
        with suppress(duckdb.TransactionException):  # one that has failed takes nothing more, and leaves no view
            for table in tables:
                connection.execute(f"drop view temp.{table}")


@contextmanager
def read_computed(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Meanwhile, of a run whose metrics are not kept, views are read with the least work; other runs have no rows."""
    with stage_run(connection, run_id), _read_alone(connection, run_id):
        yield


@contextmanager
def stage_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Meanwhile, the metrics of this run read the copy, and other runs have no requests for this connection."""
    connection.execute("create temp table stg_requests as from main.stg_requests where run_id = ?", [run_id])
    try:
        yield
    finally:
        connection.execute("drop table temp.stg_requests")


class SummaryRow(NamedTuple):
    """A row of the metric table that is a column of run_summary; the others name the columns of its interval and n."""

    metric: str
    unit: str
    column: str
    low: str | None = None
    high: str | None = None
    n: str | None = None
    only_above: int | None = None
    """The row is left out unless its value is above this: for rare events that most runs lack."""


class LatencyRow(NamedTuple):
    """A row of the metric table that is a row of latency_percentile."""

    metric: str
    latency: str
    percentile: float


METRIC_ROWS: tuple[SummaryRow | LatencyRow, ...] = (
    SummaryRow("answered", "requests", "ok_requests", n="expected_requests"),
    SummaryRow("errors", "requests", "error_requests", n="expected_requests"),
    SummaryRow("missing", "requests", "missing_requests", n="expected_requests"),
    SummaryRow("not sent, as the load had ended", "requests", "unsent_requests", n="expected_requests", only_above=0),
    SummaryRow("sent more than once", "requests", "retried_requests", n="answered_requests", only_above=0),
    SummaryRow("cut off by the context", "requests", "context_limited_requests", n="ok_requests"),
    SummaryRow("accuracy", "share", "accuracy", low="accuracy_low", high="accuracy_high", n="scored_samples"),
    SummaryRow("rows that could not be asked", "rows", "unasked_rows", only_above=0),
    SummaryRow("generation window", "s", "duration_s"),
    SummaryRow("of it without an engine at work", "s", "downtime_s", only_above=0),
    SummaryRow("of it lost to engine failures", "s", "lost_s", only_above=0),
    SummaryRow("throughput, requests", "requests/s", "requests_per_s", n="ok_requests"),
    SummaryRow("throughput, output tokens", "tokens/s", "output_tokens_per_s", n="ok_requests"),
    SummaryRow("throughput, all tokens", "tokens/s", "total_tokens_per_s", n="ok_requests"),
    LatencyRow("time to first token, p50", "ttft_s", 0.5),
    LatencyRow("time to first token, p95", "ttft_s", 0.95),
    LatencyRow("time to first token, p99", "ttft_s", 0.99),
    LatencyRow("of it in the queue, p50", "queue_s", 0.5),
    LatencyRow("of it in prefill, p50", "prefill_s", 0.5),
    LatencyRow("decoding, p50", "decode_s", 0.5),
    LatencyRow("time per output token, p50", "tpot_s", 0.5),
    LatencyRow("time per output token, p95", "tpot_s", 0.95),
    LatencyRow("time per output token, p99", "tpot_s", 0.99),
    LatencyRow("ITL, p99", "itl_s", 0.99),
    LatencyRow("end to end, p50", "e2e_s", 0.5),
    LatencyRow("end to end, p95", "e2e_s", 0.95),
    LatencyRow("end to end, p99", "e2e_s", 0.99),
    SummaryRow("in flight, mean", "requests", "mean_in_flight_requests"),
    SummaryRow("in flight, most", "requests", "max_in_flight_requests"),
    SummaryRow("prefix cache hits", "share", "prefix_cache_hit_rate", n="prompt_tokens"),
    SummaryRow("output tokens per engine step", "tokens", "output_tokens_per_step", n="engine_steps"),
    SummaryRow("window used", "share", "window_share", n="engine_steps"),
    SummaryRow("loading", "s", "load_s"),
    SummaryRow("warm-up", "s", "warmup_s"),
    SummaryRow("attempts", "attempts", "attempts", only_above=1),
    SummaryRow("loading and warm-up of later attempts", "s", "resume_load_s", only_above=0),
    SummaryRow("engine failures", "engines", "engine_failures", only_above=0),
    SummaryRow("engine rebuilds", "engines", "rebuilds", only_above=0),
    SummaryRow("from failure to ready again", "s", "recovery_s", n="rebuilds", only_above=0),
    SummaryRow("reductions", "times", "reductions", only_above=0),
    SummaryRow("requests that kill engines", "requests", "isolated_requests", only_above=0),
)
"""The metric table, in the order a person reads it."""

LAST_LATENCY = "end to end, p99"
"""After it come the rows about the load."""


def read_run_summary(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Any]:
    """The run's row of run_summary, by column name; an error where there is no such run."""
    with read_kept(connection, run_id):
        rows = read_rows(connection, "select * from run_summary where run_id = ?", run_id)
    if not rows:
        raise StoreError(f"There is no run {run_id} in the database. `from runs` lists those that there are.")
    return rows[0]


def read_metric_table(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[dict[str, Any]]:
    """The run's metrics, one dict per row of `METRIC_ROWS`: metric, value, unit, low, high, n, source.

    Rows about what did not happen in this run are left out. `low` and `high` are the ends of a 95 % interval. What is
    undefined, or was not measured, is None.
    """
    summary = read_run_summary(connection, run_id)
    # One metric at a time: DuckDB keeps all values of a percentile in memory, and of a million requests that shows.
    by_metric = "select * from latency_percentile where run_id = ? and metric = ?"
    with read_kept(connection, run_id):
        percentiles = {
            (row["metric"], row["percentile"]): row
            for latency in sorted({row.latency for row in METRIC_ROWS if isinstance(row, LatencyRow)})
            for row in read_rows(connection, by_metric, run_id, latency)
        }
        about_scores = list_score_rows(*(read_rows(connection, query, run_id) for query in SCORE_QUERIES))
        about_scores += list_harness_rows(read_rows(connection, HARNESS_QUERY, run_id))
        about_load = list_load_rows(*(read_rows(connection, query, run_id) for query in LOAD_QUERIES))
        about_media = list_media_rows(read_rows(connection, MEDIA_QUERY, run_id))
        about_cost = list_cost_rows(*(read_rows(connection, query, run_id) for query in COST_QUERIES))
    table = []
    for row in METRIC_ROWS:
        if isinstance(row, SummaryRow):
            if row.only_above is not None and (summary[row.column] or 0) <= row.only_above:
                continue
            cells = {name: summary[column] if column else None for name, column in _columns_of(row).items()}
            unit, source = row.unit, f"run_summary.{row.column}"
        else:
            found = percentiles[row.latency, row.percentile]
            cells = {"value": found["value_s"], "low": found["low_s"], "high": found["high_s"], "n": found["n"]}
            unit, source = "s", f"latency_percentile.{row.latency}"
        scorer = summary["scorer"] if summary["accuracy"] is not None else None
        metric = name_accuracy(scorer) if row.metric == "accuracy" else row.metric
        table.append({"metric": metric, "unit": unit, "source": source, **cells})
        if row.metric == "accuracy":
            table += about_scores
        if row.metric == LAST_LATENCY:
            table += about_load + about_media
    return table + about_cost


def _columns_of(row: SummaryRow) -> dict[str, str | None]:
    return {"value": row.column, "low": row.low, "high": row.high, "n": row.n}


LOAD_QUERIES = (
    "select * from goodput where run_id = ? order by slo",
    "select * from send_lag where run_id = ?",
)
"""What `list_load_rows` wants to know, in this order."""


def list_load_rows(objectives: list[Row], lags: list[Row]) -> list[Row]:
    """Rows of the metric table; none for a run without objectives and without an open-loop load."""
    rows = []
    for row in objectives:
        name, n = row["slo"], row["requests"]
        rows.append(_load_row(f"good requests ({name})", "share", "goodput.good_share", row["good_share"], n))
        rows.append(
            _load_row(f"goodput ({name})", "requests/s", "goodput.good_requests_per_s", row["good_requests_per_s"], n)
        )
    for row in lags:
        rows.append(_load_row("sent late, p99", "s", "send_lag.p99_s", row["p99_s"], row["requests"]))
    return rows


MEDIA_QUERY = "select * from media_use where run_id = ?"
MEDIA_ROWS = (
    ("images", "images/s", "images_per_s", "images"),
    ("pixels of images", "megapixels/s", "megapixels_per_s", "images"),
    ("seconds of sound per second (RTFx)", "s/s", "audio_s_per_s", "audios"),
    ("seconds of video per second", "s/s", "video_s_per_s", "videos"),
    ("throughput, prompt tokens of media", "tokens/s", "media_tokens_per_s", "media_requests"),
    ("throughput, prompt tokens of text", "tokens/s", "text_tokens_per_s", "media_requests"),
    ("preparing media, p50", "s", "prepare_p50_s", "media_requests"),
    ("preparing media, p95", "s", "prepare_p95_s", "media_requests"),
)
"""Metric, unit, column and n of media_use."""


def list_media_rows(uses: list[Row]) -> list[Row]:
    """Rows of the metric table; none for a run of text alone, and none of a kind that it had not."""
    return [
        _load_row(metric, unit, f"media_use.{column}", use[column], use[n])
        for use in uses
        for metric, unit, column, n in MEDIA_ROWS
        if use[column] is not None
    ]


def _load_row(metric: str, unit: str, source: str, value: Any, n: int) -> Row:
    return {"metric": metric, "unit": unit, "source": source, "value": value, "low": None, "high": None, "n": n}


COST_QUERIES = ("select * from run_energy where run_id = ?", "select * from run_cost where run_id = ?")
"""What `list_cost_rows` wants to know, in this order."""

ENERGY_ROWS = (
    ("energy of GPUs", "J", "energy_joules"),
    ("of it with no engine at work", "J", "idle_joules"),
)
"""Metric, unit and column of run_energy."""

EFFICIENCY_ROWS = (
    ("power of GPUs, mean", "W", "mean_power_watts"),
    ("energy per output token", "J/token", "energy_per_output_token_joules"),
    ("energy per request", "J/request", "energy_per_request_joules"),
    ("output tokens per joule", "tokens/J", "output_tokens_per_joule"),
)
"""Metric, unit and column of run_cost."""

COST_ROWS = (
    ("cost, loading and downtime included", "", "cost"),
    ("cost per million output tokens", "/million tokens", "cost_per_million_output_tokens"),
    ("cost per thousand requests", "/thousand requests", "cost_per_thousand_requests"),
    ("cost per right answer", "/right answer", "cost_per_right_answer"),
    ("the same, loading and downtime included", "/right answer", "full_cost_per_right_answer"),
)
"""Metric, what it is divided by, and column of run_cost."""


def list_cost_rows(energies: list[Row], costs: list[Row]) -> list[Row]:
    """Rows of the metric table; none of energy for a run without a sensor, and none of cost for one without a price."""
    rows = [
        _cost_row(metric, unit, view, column, row)
        for view, found, wanted in (("run_energy", energies, ENERGY_ROWS), ("run_cost", costs, EFFICIENCY_ROWS))
        for row in found
        for metric, unit, column in wanted
        if row[column] is not None
    ]
    rows += [
        _cost_row(metric, f"{cost['currency']}{unit}", "run_cost", column, cost)
        for cost in costs
        for metric, unit, column in COST_ROWS
        if cost["currency"] is not None and (cost[column] is not None or column == "cost")
    ]
    return rows


def _cost_row(metric: str, unit: str, view: str, column: str, row: Row) -> Row:
    interval = {"low": row.get(f"{column}_low"), "high": row.get(f"{column}_high")}
    return {"metric": metric, "unit": unit, "source": f"{view}.{column}", "value": row[column], **interval, "n": None}


SCORE_QUERIES = (
    "select * from accuracy where run_id = ? order by ordinal",
    "select * from pass_at_k where run_id = ? order by k",
    "select * from majority_vote where run_id = ?",
)
"""What `list_score_rows` wants to know, in this order."""

USUAL_K = (5, 10, 100)
"""Which pass@k are shown, beside the one of all samples; pass@1 is the mean."""


def list_score_rows(accuracies: list[Row], chances: list[Row], votes: list[Row]) -> list[Row]:
    """Rows of the metric table, but for the first scorer's accuracy, which run_summary has."""
    most = max((row["k"] for row in chances), default=0)
    rows = [
        _score_row(name_accuracy(row["scorer"]), "accuracy.mean", row, row["samples"])
        for row in accuracies[1:]
        if row["mean"] is not None
    ]
    for scorer in [row["scorer"] for row in accuracies]:
        rows += [
            _score_row(f"pass@{row['k']} ({scorer})", "pass_at_k.mean", row, row["prompts"])
            for row in chances
            if row["scorer"] == scorer and row["k"] in (*USUAL_K, most)
        ]
        rows += [
            _score_row(f"majority vote ({scorer})", "majority_vote.mean", row, row["prompts"])
            for row in votes
            if row["scorer"] == scorer
        ]
    return rows


HARNESS_QUERY = """
    select scorers.scorer, aggregate.key as task, cast(aggregate.value as double) as value
    from scorers, json_each(scorers.arguments_json, '$.harness') as aggregate
    where scorers.run_id = ? and scorers.kind = 'lm_eval'
    order by scorers.ordinal, task
"""


def list_harness_rows(aggregates: list[Row]) -> list[Row]:
    """Rows of the metric table: what a harness itself says of each task and group; none for other runs."""
    return [
        {
            "metric": f"{row['task']} ({row['scorer']})", "unit": "as lm-eval", "source": "scorers.arguments_json",
            "value": row["value"], "low": None, "high": None, "n": None,
        }
        for row in aggregates
    ]  # fmt: skip


def name_accuracy(scorer: str | None) -> str:
    """What the accuracy by a scorer is called."""
    return f"accuracy ({scorer})" if scorer else "accuracy"


def _score_row(metric: str, source: str, row: Row, n: int) -> Row:
    interval = {"low": row.get("mean_low"), "high": row.get("mean_high")}
    return {"metric": metric, "unit": "share", "source": source, "value": row["mean"], **interval, "n": n}

"""A run's metrics: stored when the run ends, computed together for a report, and shown as a metric table.

    with transaction(connection):
        store_metrics(connection, [run_id])

The views of `sql/models/25_metric_value` compute what is stored in `metric_values`; `measured_runs` has a row per run
and digests of these definitions. Code that changes a run's rows calls `forget_metrics` in the same transaction, and
code that reads `metric_values` calls `ensure_metrics` first: what is read is never older than rows or definitions.

No metric is computed here. Each number of the metric table is a cell of a view in `sql/models/`, whose comment holds
its definition, and each row says which: `source` is `view.column`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

import duckdb

from assayline.errors import StoreError
from assayline.store.database import Row, list_models, read_rows, transaction
from assayline.store.views import Model, digest_definition, list_needed, quote_text

SOURCE_FOLDER = "25_metric_value"
"""The folder of the views whose rows are stored."""

FACTS = "prepared_run"
"""The view that `measured_runs` has its columns of."""

COMPUTED_FOLDERS = ("05_load", "20_metrics", SOURCE_FOLDER, "30_report")
"""Folders of views each of whose rows is of one run, and of that run's rows alone."""

MANY_REQUESTS = 50_000
"""Small runs are computed together up to this many; a larger run is computed in pieces where a view says so."""


@cache
def _define() -> dict[str, str]:
    """Views whose rows are stored, each with the digest of its definition."""
    models = list_models()
    sources = [model.name for model in models.values() if model.folder == SOURCE_FOLDER]
    return {name: digest_definition(models, name) for name in (*sources, FACTS)}


def store_metrics(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> None:
    """Computes and stores the metrics of these runs, inside the caller's transaction."""
    forget_metrics(connection, *run_ids)
    definitions = _define()
    with compute_runs(connection, run_ids):
        for source in definitions:
            if source == FACTS:
                continue
            rows = f"select {quote_text(source)} as source, * from {source}"  # noqa: S608 - names are ours
            connection.execute(f"insert into metric_values by name {rows}")
        connection.execute(
            "insert into measured_runs by name select run_id, map(?::varchar[], ?::varchar[]) as definitions, "
            "prompts_digest, is_longest_first, ? as measured_at from prepared_run",
            [list(definitions), list(definitions.values()), datetime.now(UTC).replace(tzinfo=None)],
        )


def forget_metrics(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> None:
    """Deletes what is stored of these runs, whose rows change. Inside the caller's transaction."""
    for table in ("measured_runs", "metric_values"):
        query = f"delete from main.{table} where list_contains(?::varchar[], run_id)"  # noqa: S608 - names are ours
        connection.execute(query, [list(run_ids)])


def list_unmeasured(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str] | None = None) -> list[str]:
    """Those of these runs (default: all) that have ended and whose metrics are not stored as defined today."""
    definitions = _define()
    query = """
        select run_id
        from main.runs
        left join main.measured_runs using (run_id)
        where state <> 'running'
            and definitions is distinct from map(?::varchar[], ?::varchar[])
            and coalesce(list_contains(?::varchar[], run_id), true)
        order by started_at, run_id
    """
    values = [list(definitions), list(definitions.values()), None if run_ids is None else list(run_ids)]
    return [run_id for (run_id,) in connection.execute(query, values).fetchall()]


def ensure_metrics(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str] | None = None) -> None:
    """Stores what is missing of these runs (default: all) if they have ended, some runs at a time."""
    wanted = list_unmeasured(connection, run_ids)
    if not wanted:
        return
    counts = "select run_id, count(*) from main.requests where list_contains(?::varchar[], run_id) group by run_id"
    requests = dict(connection.execute(counts, [wanted]).fetchall())
    batch: list[str] = []
    for run_id in wanted:
        if batch and sum(requests.get(one, 0) for one in [*batch, run_id]) > MANY_REQUESTS:
            with transaction(connection):
                store_metrics(connection, batch)
            batch = []
        batch.append(run_id)
    with transaction(connection):
        store_metrics(connection, batch)


def ensure_repeats(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> None:
    """The same for these runs and all that have a configuration with one of them in common."""
    query = """
        select run_id
        from main.runs
        where list_contains($run_ids::varchar[], run_id)
            or config_id in (select config_id from main.runs where list_contains($run_ids::varchar[], run_id))
    """
    ensure_metrics(connection, [run_id for (run_id,) in connection.execute(query, {"run_ids": run_ids}).fetchall()])


def ensure_benchmark(connection: duckdb.DuckDBPyConnection, benchmark_id: str) -> None:
    """The same for the runs of a benchmark."""
    query = "select run_id from main.runs where benchmark_id = ?"
    ensure_metrics(connection, [run_id for (run_id,) in connection.execute(query, [benchmark_id]).fetchall()])


@contextmanager
def compute_runs(
    connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str], wanted: Iterable[str] | None = None
) -> Iterator[None]:
    """Meanwhile, views about runs have the rows of these and no others, each view computed once.

    `wanted` are the views that are asked for (default: those that metrics are stored from). Raw tables, too, have only
    these runs' rows under a name without a schema, and cannot be written by it. May be nested for the same runs.
    """
    of_runs = f"where run_id in ({', '.join(map(quote_text, run_ids))})"
    name = connection.execute("select current_database()").fetchall()[0][0].replace('"', '""')
    here = f'"{name}".main'  # without the database's name, main is that of temporary tables, too
    known = {name for (name,) in connection.execute(_TEMPORARY).fetchall()}
    made: list[tuple[str, str]] = []

    def make(kind: str, name: str, query: str) -> None:
        connection.execute(f"create temp {kind} {name} as {query}")
        made.append((kind, name))

    models = list_models()
    needed = list_needed(models, _define() if wanted is None else wanted)
    try:
        for (table,) in connection.execute(_TABLES_OF_RUNS).fetchall():
            if table not in known:
                make("view", table, f"select * from {here}.{table} {of_runs}")  # noqa: S608 - names are ours
        requests = connection.execute("select count(*) from requests").fetchall()[0][0]
        for model in models.values():
            if model.name in needed and model.name not in known and _is_computed(model):
                query = f"select * from {here}.{model.name} {of_runs}"  # noqa: S608 - names are ours
                column, values = model.pieces or ("", [])
                if values and requests > MANY_REQUESTS:
                    make("table", model.name, f"{query} and {column} = {quote_text(values[0])}")
                    for value in values[1:]:
                        connection.execute(f"insert into {model.name} {query} and {column} = ?", [value])
                else:
                    make("table", model.name, query)
        yield
    finally:
        with suppress(duckdb.TransactionException):  # one that has failed takes nothing more, and leaves nothing
            for kind, name in reversed(made):
                connection.execute(f"drop {kind} if exists temp.{name}")


def _is_computed(model: Model) -> bool:
    return model.name == "stg_requests" or (model.is_view and model.folder in COMPUTED_FOLDERS)


_TEMPORARY = """
    select table_name from duckdb_tables() where temporary
    union all
    select view_name from duckdb_views() where temporary and not internal
"""
_TABLES_OF_RUNS = """
    select table_name
    from duckdb_columns()
    where database_name = current_database() and schema_name = 'main' and column_name = 'run_id'
        and table_name in (select table_name from duckdb_tables() where not temporary)
        and table_name not in ('baselines', 'verdicts', 'measured_runs', 'metric_values')
"""


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

"""A run's metrics as a person reads them: rows of the SQL models, chosen, named and put in order.

No metric is computed here. Each number is a cell of a view in `sql/models/`, whose comment holds its definition, and
each row of the table says which: `source` is `view.column`.
"""

from typing import Any, NamedTuple

import duckdb

from assayline.errors import StoreError
from assayline.store import load_rows, score_rows
from assayline.store.kept import read_kept
from assayline.store.load_rows import list_load_rows
from assayline.store.score_rows import list_score_rows, name_accuracy


class SummaryRow(NamedTuple):
    """A row of the metric table that is a column of run_summary; the others name the columns of its interval and n."""

    metric: str
    unit: str
    column: str
    low: str | None = None
    high: str | None = None
    n: str | None = None
    only_above: int | None = None
    """The row is left out unless its value is above this: it is about what most runs do not have."""


class LatencyRow(NamedTuple):
    """A row of the metric table that is a row of latency_percentile."""

    metric: str
    latency: str
    percentile: float


METRIC_ROWS: tuple[SummaryRow | LatencyRow, ...] = (
    SummaryRow("answered", "requests", "answered_requests", n="expected_requests"),
    SummaryRow("errors", "requests", "error_requests", n="answered_requests"),
    SummaryRow("missing", "requests", "missing_requests", n="expected_requests"),
    SummaryRow("not sent, as the load had ended", "requests", "unsent_requests", n="expected_requests", only_above=0),
    SummaryRow("sent more than once", "requests", "retried_requests", n="answered_requests", only_above=0),
    SummaryRow("cut off by the context", "requests", "context_limited_requests", n="ok_requests"),
    SummaryRow("accuracy", "share", "accuracy", low="accuracy_low", high="accuracy_high", n="scored_samples"),
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
    LatencyRow("gap between tokens, p99", "itl_s", 0.99),
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
        about_scores = list_score_rows(*(read_rows(connection, query, run_id) for query in score_rows.QUERIES))
        about_load = list_load_rows(*(read_rows(connection, query, run_id) for query in load_rows.QUERIES))
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
        metric = name_accuracy(summary["scorer"]) if row.metric == "accuracy" else row.metric
        table.append({"metric": metric, "unit": unit, "source": source, **cells})
        if row.metric == "accuracy":
            table += about_scores
        if row.metric == LAST_LATENCY:
            table += about_load
    return table


def _columns_of(row: SummaryRow) -> dict[str, str | None]:
    return {"value": row.column, "low": row.low, "high": row.high, "n": row.n}


def read_rows(connection: duckdb.DuckDBPyConnection, query: str, *values: Any) -> list[dict[str, Any]]:
    """A query's rows, by column name."""
    result = connection.execute(query, list(values))
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, values, strict=True)) for values in result.fetchall()]

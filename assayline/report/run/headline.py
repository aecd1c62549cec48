"""What a person reads first: how the run ended, how good and how fast it was, in sentences and in key figures."""

from assayline.report.document import Figure
from assayline.report.run.cost import say_cost
from assayline.report.run.rows import ReportRows
from assayline.store.database import Row
from assayline.words import count, show_range, show_rate, show_seconds, show_share


def describe_state(rows: ReportRows) -> str:
    """How the run ended."""
    return str(rows.run["state"])


def write_headline(rows: ReportRows) -> list[str]:
    """Sentences, the most important first."""
    sentences = [
        _say_end(rows),
        _say_quality(rows.summary),
        _say_speed(rows),
        say_cost(rows),
        _say_trouble(rows.summary),
    ]
    return [sentence for sentence in sentences if sentence]


def choose_figures(rows: ReportRows) -> list[Figure]:
    """Six numbers. What was not measured is a dash and says why."""
    summary = rows.summary
    interval = show_range(show_share(summary["accuracy_low"]), show_share(summary["accuracy_high"]))
    return [
        Figure(
            "Accuracy",
            show_share(summary["accuracy"]),
            (f"{interval}, n {summary['scored_samples']:,}" if interval else count(summary["scored_samples"], "score"))
            + _say_unasked(summary),
            is_bad=summary["unasked_rows"] > 0,
        ),
        Figure(
            "Throughput",
            show_rate(summary["output_tokens_per_s"], "tokens"),
            f"{show_rate(summary['requests_per_s'], 'requests')}"
            if summary["requests_per_s"] is not None
            else "nothing was timed",
        ),
        _latency_figure(rows, "First token", "ttft_s"),
        _latency_figure(rows, "End to end", "e2e_s"),
        Figure(
            "Errors",
            f"{summary['error_requests']:,}",
            f"of {count(summary['expected_requests'], 'request')}",
            is_bad=summary["error_requests"] > 0,
        ),
        Figure(
            "Engine failures",
            f"{summary['engine_failures'] or 0:,}",
            count(summary["reductions"], "memory reduction"),
            is_bad=bool(summary["engine_failures"]),
        ),
    ]


def find_percentile(rows: ReportRows, metric: str, percentile: float) -> Row | None:
    """The row of latency_percentile, or None where nothing was measured."""
    for row in rows.percentiles:
        if (row["metric"], row["percentile"]) == (metric, percentile) and row["value_s"] is not None:
            return row
    return None


def _latency_figure(rows: ReportRows, label: str, metric: str) -> Figure:
    median, tail = find_percentile(rows, metric, 0.5), find_percentile(rows, metric, 0.95)
    if median is None or tail is None:
        return Figure(f"{label}, median", show_seconds(None), "nothing was timed")
    return Figure(
        f"{label}, median", show_seconds(median["value_s"]), f"95th percentile {show_seconds(tail['value_s'])}"
    )


def _say_end(rows: ReportRows) -> str:
    summary, message = rows.summary, rows.run["message"]
    answered = f"{summary['ok_requests']:,} of {count(summary['expected_requests'], 'request')} answered"
    if rows.run["state"] == "completed":
        return f"The run is complete: {answered}."
    words = "The run failed" if rows.run["state"] == "failed" else f"The run was {rows.run['state']}"
    reason = f": {str(message).splitlines()[0].rstrip('.')}" if message else ""
    return f"{words}{reason}. {answered}."


def _say_quality(summary: Row) -> str:
    if summary["accuracy"] is None:
        return "Nothing was scored."
    interval = show_range(show_share(summary["accuracy_low"]), show_share(summary["accuracy_high"]))
    sure = f", with 95 % confidence {interval}" if interval else ""
    n = f"n {summary['scored_samples']:,}"
    return f"{show_share(summary['accuracy'])} right by {summary['scorer']}{sure} ({n}{_say_unasked(summary)})."


def _say_unasked(summary: Row) -> str:
    """What makes an accuracy lower than the model's answers do."""
    rows = summary["unasked_rows"]
    return f"; {count(rows, 'row')} could not be asked" if rows else ""


def _say_speed(rows: ReportRows) -> str:
    tail = find_percentile(rows, "e2e_s", 0.95)
    if rows.summary["output_tokens_per_s"] is None or tail is None:
        return "" if rows.summary["ok_requests"] else "There is no result, and so no speed."
    rate = show_rate(rows.summary["output_tokens_per_s"], "output tokens")
    return f"{rate}; 19 of 20 requests took {show_seconds(tail['value_s'])} or less."


def _say_trouble(summary: Row) -> str:
    parts = []
    if summary["error_requests"]:
        parts.append(f"{count(summary['error_requests'], 'request')} ended in an error")
    if summary["missing_requests"]:
        parts.append(f"{count(summary['missing_requests'], 'request has', 'requests have')} no answer")
    if summary["engine_failures"]:
        reduced = f" and {count(summary['reductions'], 'reduction')}" if summary["reductions"] else ""
        parts.append(f"{count(summary['engine_failures'], 'engine failure')}{reduced}")
    if summary["context_limited_requests"]:
        parts.append(
            f"{count(summary['context_limited_requests'], 'answer was', 'answers were')} cut off by the context"
        )
    return f"Mind: {'; '.join(parts)}." if parts else "No errors, and no engine failed."

"""The metric table's rows about a load: goodput per objective, and how late requests were sent."""

from typing import Any

Row = dict[str, Any]

QUERIES = (
    "select * from goodput where run_id = ? order by slo",
    "select * from send_lag where run_id = ?",
)
"""What `list_load_rows` wants to know, in this order."""


def list_load_rows(objectives: list[Row], lags: list[Row]) -> list[Row]:
    """Rows of the metric table; none for a run without objectives and without an open-loop load."""
    rows = []
    for row in objectives:
        name, n = row["slo"], row["requests"]
        rows.append(_row(f"good requests ({name})", "share", "goodput.good_share", row["good_share"], n))
        rows.append(
            _row(f"goodput ({name})", "requests/s", "goodput.good_requests_per_s", row["good_requests_per_s"], n)
        )
    for row in lags:
        rows.append(_row("sent late, p99", "s", "send_lag.p99_s", row["p99_s"], row["requests"]))
    return rows


def _row(metric: str, unit: str, source: str, value: Any, n: int) -> Row:
    return {"metric": metric, "unit": unit, "source": source, "value": value, "low": None, "high": None, "n": n}

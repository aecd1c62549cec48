"""Values per request as GuideLLM's distributions: its weights, its percentiles (nearest rank), its spread.

They are not those of our models, where percentiles are interpolated and have intervals (`latency_percentile`).
"""

from typing import Any

from assayline.store.database import Connection, Row, read_rows

MISSING = "NaN"
"""Of a spread that is not known, where a number is demanded: a string in JSON, and for GuideLLM not a number."""
STATUSES = ("successful", "incomplete", "errored", "total")
PERCENTILES = {
    "p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9,
    "p95": 0.95, "p99": 0.99, "p999": 0.999,
}  # fmt: skip
SUMMARIES = ("mean", "median", "mode", "variance", "std_dev", "min", "max", "total_sum")

EMPTY = {**dict.fromkeys(SUMMARIES, 0.0), "count": 0, "percentiles": dict.fromkeys(PERCENTILES, 0.0)}
"""The distribution of no values as GuideLLM writes it: its count says that the zeros are none."""

VALUES = {
    "requests": ("1", "1"),
    "request_latency": ("e2e_s", "1"),
    "request_dispatch_delay": ("arrived_at_s - due_at_s", "1"),
    "request_scheduled_latency": ("finished_at_s - due_at_s", "1"),
    "prompt_token_count": ("prompt_tokens", "1"),
    "output_token_count": ("output_tokens", "1"),
    "total_token_count": ("prompt_tokens + output_tokens", "1"),
    "time_to_first_token_ms": ("ttft_s * 1000", "1"),
    "time_to_first_output_token_ms": ("case when reasoning is null then ttft_s * 1000 end", "1"),
    "time_per_output_token_ms": ("(last_token_at_s - arrived_at_s) * 1000 / nullif(output_tokens, 0)", "output_tokens"),
    "inter_token_latency_ms": ("tpot_s * 1000", "output_tokens - 1"),
}
"""Their names, and of a request the value and how often it counts: the last two stand for tokens."""

DISTRIBUTIONS = """
with

read_values as (
    select status, unnest([{values}], recursive := true)
    from temp.exported_rows
    where status in ('ok', 'error') and coalesce(phase, 'measured') = 'measured'
),

add_totals as (
    select metric, value, weight, unnest([if(status = 'ok', 'successful', 'errored'), 'total']) as status
    from read_values
    where value is not null and weight > 0
),

count_values as (
    select metric, status, value, sum(weight) as weight
    from add_totals
    group by metric, status, value
),

place_values as (
    select
        *,
        sum(weight) over (partition by metric, status order by value) as weight_up_to,
        sum(weight) over (partition by metric, status) as weight_of_all,
        sum(value * weight) over (partition by metric, status) as total_sum
    from count_values
)

select
    metric,
    status,
    any_value(total_sum / weight_of_all) as mean,
    max_by(value, {{'weight': weight, 'smallest': -value}}) as mode,
    sum(weight * (value - total_sum / weight_of_all) ** 2) / any_value(weight_of_all) as variance,
    min(value) as min,
    max(value) as max,
    any_value(weight_of_all)::bigint as count,
    any_value(total_sum) as total_sum,
    {percentiles}
from place_values
group by metric, status
"""


def read_distributions(connection: Connection) -> dict[str, dict[str, Any]]:
    """By name and status, of the measured requests in `temp.exported_rows`; names without a value are left out."""
    values = ", ".join(
        f"{{'metric': '{name}', 'value': ({value})::double, 'weight': ({weight})::double}}"
        for name, (value, weight) in VALUES.items()
    )
    shares = ", ".join(
        f"min(value) filter (weight_up_to / weight_of_all >= {share}) as {name}" for name, share in PERCENTILES.items()
    )
    found: dict[str, dict[str, Any]] = {}
    for row in read_rows(connection, DISTRIBUTIONS.format(values=values, percentiles=shares)):
        of_name = found.setdefault(row["metric"], dict.fromkeys(STATUSES, EMPTY))
        of_name[row["status"]] = _describe(row)
    return found


def _describe(row: Row) -> dict[str, Any]:
    percentiles = {name: row[name] for name in PERCENTILES}
    derived = {"median": row["p50"], "std_dev": row["variance"] ** 0.5}
    return {
        **{name: derived.get(name, row.get(name)) for name in SUMMARIES},
        "count": row["count"],
        "percentiles": percentiles,
    }


def describe_mean(mean: float | None, count: int) -> dict[str, Any]:
    """Of values of which nothing but the mean is known; of none, where that is not known either."""
    if mean is None:
        return EMPTY
    unknown = dict.fromkeys(SUMMARIES, MISSING), dict.fromkeys(PERCENTILES, MISSING)
    return {**unknown[0], "mean": mean, "count": count, "percentiles": unknown[1]}

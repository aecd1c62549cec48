"""Numbers that files state: their names in `metric_value` by tool, and readers of files that have no rows.

A latency in milliseconds becomes seconds; nothing else is computed, and no number gets an interval.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from assayline.imports.rows import Imported, Total, read_json, read_number, read_time
from assayline.records import Json

PERFORMANCE, VALUES = "inference-perf", "values"
STATISTICS = {"median": "p50", "std": "sd", "std_dev": "sd", "avg": "mean", "p001": "p0.1", "p999": "p99.9"}
"""Names of statistics that differ from ours, by those of the tools."""
SHARE = "share"
SUMMARY = r"(?:percentiles\.)?(mean|std_dev|min|max|p\d+)"


class Field(NamedTuple):
    """Numbers of a file by a pattern of their dotted path, whose group is the statistic."""

    pattern: str
    metric: str
    unit: str
    higher_is_better: bool | None = None
    factor: float = 1.0
    statistic: str = "total"


def _rate(pattern: str, metric: str, unit: str) -> Field:
    return Field(pattern, metric, unit, True, statistic="mean")


FIELDS: dict[str, tuple[Field, ...]] = {
    "vllm-bench": (
        *(
            Field(rf"(mean|median|std|p[\d.]+)_{name}_ms", metric, "s", False, 1e-3)
            for name, metric in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("itl", "itl_s"), ("e2el", "e2e_s"))
        ),
        _rate("request_throughput|requests_per_second", "requests_per_s", "requests/s"),
        _rate("output_throughput", "output_tokens_per_s", "tokens/s"),
        _rate("input_throughput", "prompt_tokens_per_s", "tokens/s"),
        _rate("total_token_throughput|tokens_per_second", "total_tokens_per_s", "tokens/s"),
        _rate("request_goodput", "good_requests_per_s", "requests/s"),
        Field("(max)_output_tokens_per_s", "output_tokens_per_s", "tokens/s", True),
        Field("(max)_concurrent_requests", "in_flight_requests", "requests"),
        Field("completed|num_requests", "ok_requests", "requests", True),
        Field("failed", "error_requests", "requests", False),
        Field("total_input_tokens", "prompt_tokens", "tokens"),
        Field("total_output_tokens", "output_tokens", "tokens"),
        Field("total_num_tokens", "total_tokens", "tokens"),
        Field("duration|elapsed_time", "duration_s", "s"),
        Field("(avg)_latency", "batch_latency_s", "s", False),
        Field(r"percentiles\.([\d.]+)", "batch_latency_s", "s", False),
    ),
    "guidellm": (
        *(
            Field(rf"metrics\.{name}\.successful\.{SUMMARY}", metric, "s", False, factor)
            for name, metric, factor in (
                ("time_to_first_token_ms", "ttft_s", 1e-3),
                ("inter_token_latency_ms", "tpot_s", 1e-3),
                ("time_per_output_token_ms", "time_per_output_token_s", 1e-3),
                ("request_latency", "e2e_s", 1.0),
            )
        ),
        *(
            _rate(rf"metrics\.{name}\.successful\.(mean)", metric, unit)
            for name, metric, unit in (
                ("requests_per_second", "requests_per_s", "requests/s"),
                ("output_tokens_per_second", "output_tokens_per_s", "tokens/s"),
                ("prompt_tokens_per_second", "prompt_tokens_per_s", "tokens/s"),
                ("tokens_per_second", "total_tokens_per_s", "tokens/s"),
            )
        ),
        Field(r"metrics\.request_totals\.successful", "ok_requests", "requests", True),
        Field(r"metrics\.request_totals\.errored", "error_requests", "requests", False),
        Field(r"metrics\.request_totals\.incomplete", "unsent_requests", "requests"),
        Field(r"metrics\.request_concurrency\.successful\.(mean|max)", "in_flight_requests", "requests"),
        Field("duration", "duration_s", "s"),
    ),
    PERFORMANCE: (
        *(
            Field(rf"successes\.latency\.{name}\.(mean|median|min|max|p\d+)", metric, "s", False)
            for name, metric in (
                ("time_to_first_token", "ttft_s"),
                ("time_per_output_token", "tpot_s"),
                ("inter_token_latency", "itl_s"),
                ("request_latency", "e2e_s"),
                ("normalized_time_per_output_token", "time_per_output_token_s"),
            )
        ),
        *(
            _rate(rf"successes\.throughput\.{name}_per_sec", f"{metric}_per_s", unit)
            for name, metric, unit in (
                ("requests", "requests", "requests/s"),
                ("input_tokens", "prompt_tokens", "tokens/s"),
                ("output_tokens", "output_tokens", "tokens/s"),
                ("total_tokens", "total_tokens", "tokens/s"),
            )
        ),
        Field(r"successes\.count", "ok_requests", "requests", True),
        Field(r"failures\.count", "error_requests", "requests", False),
        Field(r"load_summary\.schedule_delay\.(\w+)", "send_lag_s", "s", False),
        Field(r"load_summary\.achieved_rate", "sent_requests_per_s", "requests/s", statistic="mean"),
    ),
}
"""Fields by tool. Exact numbers of other names keep them; counts and texts of other names are settings."""


def read_totals(tool: str, data: Any, n: int | None = None) -> tuple[list[Total], dict[str, Json]]:
    """Return the numbers of a file that FIELDS name, and other values by path. `n` is the number of answers."""
    found, others = list[Total](), dict[str, Json]()
    for path, value in _flatten(data):
        for field in FIELDS[tool]:
            if (match := re.fullmatch(field.pattern, path)) and (number := _read_finite(value)) is not None:
                given = match[1] if match.re.groups and match[1] else field.statistic
                named = f"p{given}" if given[0].isdigit() else STATISTICS.get(given, re.sub("^p0(?=.)", "p", given))
                counted = None if field.statistic == "total" and not match.re.groups else n
                found.append(
                    Total(field.metric, named, number * field.factor, field.unit, counted, None, field.higher_is_better)
                )
                break
        else:
            others[path] = value
    return found, others


def _flatten(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings by dotted path; lists are left out."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{path}{name}.")
        elif not isinstance(value, list):
            yield f"{path}{name}", value


def _read_finite(value: Any) -> float | None:
    number = None if isinstance(value, bool | str) else read_number(value)
    return number if number is not None and math.isfinite(number) else None


def name_others(others: dict[str, Json]) -> tuple[list[Total], dict[str, Json]]:
    """Split other values: fractions are numbers of names of their own, and counts, texts and flags are settings."""
    totals, settings = list[Total](), dict[str, Json]()
    for path, value in others.items():
        if isinstance(value, float) and math.isfinite(value) and value != int(value):
            totals.append(Total(re.sub(r"\W+", "_", path), "value", value, ""))
        elif value is not None:
            settings[path] = value
    return totals, settings


def make_score(scorer: str, metric: str, value: float, n: int | None, higher_is_better: bool | None = True) -> Total:
    """Return a score of a harness: accuracy, if it is a share of which more is better, or its own metric."""
    if 0 <= value <= 1 and higher_is_better is not False:
        return Total("accuracy", "mean", value, SHARE, n, scorer, True)
    return Total(re.sub(r"\W+", "_", metric), "mean", value, "", n, scorer, higher_is_better)


def read_stage(path: Path) -> Iterator[Imported]:
    """Yield the run of a stage or summary of inference-perf, which names neither model nor time."""
    data = read_json(path)
    totals, others = read_totals(PERFORMANCE, data, data["successes"]["count"])
    more, _ = name_others({name: value for name, value in others.items() if not name.endswith("requested_rate")})
    rate = data["load_summary"].get("requested_rate")
    yield Imported(
        tool=PERFORMANCE,
        version=None,
        model="",
        prompt_set=" ".join(filter(None, [PERFORMANCE, f"rate {rate:g}" if rate else path.stem.split("_")[0]])),
        files=[path],
        totals=[*totals, *more],
        settings={"requested_rate": rate},
        counts={"requests": data["successes"]["count"] + data["failures"]["count"]},
    )


UNITS = {field.metric: (field.unit, field.higher_is_better) for fields in FIELDS.values() for field in fields}
UNITS["accuracy"] = SHARE, True


def parse_table(text: str) -> list[Any]:
    """Return the rows of a CSV with names of columns, of a JSON list, or of JSON lines."""
    match text.lstrip()[:1]:
        case "[":
            return list(json.loads(text))
        case "{":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    return list(csv.DictReader(io.StringIO(text, newline="")))


def read_values(path: Path) -> Iterator[Imported]:
    """Yield a run per date and model of a table with date, name and value, and perhaps model, unit and n."""
    rows: list[dict[str, Any]] = parse_table(path.read_text(encoding="utf-8-sig"))
    nights: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        nights.setdefault((str(row["date"]), row.get("model") or ""), []).append(row)
    for (date, model), night in nights.items():
        yield Imported(
            tool=VALUES,
            version=None,
            model=model,
            prompt_set=path.stem,
            files=[path],
            content=[path.stem, date, model, [{name: str(value) for name, value in row.items()} for row in night]],
            totals=[_read_value(row) for row in night],
            started_s=read_time(date),
        )


def _read_value(row: dict[str, Any]) -> Total:
    name, value, n = str(row["name"]), read_number(row["value"]), read_number(row.get("n") or None)
    if value is None or not math.isfinite(value):
        raise ValueError(f"the value of {name} on {row['date']} is {row['value']!r}, expected a number")
    counted = None if n is None else int(n)
    if (unit := row.get("unit")) == SHARE or name == "accuracy":
        return Total("accuracy", "mean", value, SHARE, counted, name, True)
    known, is_better = UNITS.get(name, ("", None))
    return Total(name, "mean", value, unit or known, counted, None, is_better)

"""Numbers that a file states, computed again from its own rows.

Scores, counts, tokens and latencies are recomputed; rates of vLLM's results too, by the duration that they state. Of
tables that assayline exported, `metric_value.parquet` and `run.parquet` are, from the rows of requests and scores.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline.errors import PromptError
from assayline.imports.kinds import find_files, list_files
from assayline.imports.make import read_files, reading
from assayline.imports.rows import Imported, Total, check_rows
from assayline.records import Completion
from assayline.store.score_files import HarnessScore

RELATIVE, ABSOLUTE = 1e-6, 2e-6
"""Differences within both are of rounding: times are stored in microseconds."""
SPANS = {
    "ttft_s": ("sent_at_s", "first_token_at_s"),
    "e2e_s": ("sent_at_s", "finished_at_s"),
}
AMOUNTS = {
    "requests_per_s": ("ok_requests",),
    "prompt_tokens_per_s": ("prompt_tokens",),
    "output_tokens_per_s": ("output_tokens",),
    "total_tokens_per_s": ("prompt_tokens", "output_tokens"),
}
STATED = "metric_value.parquet"
LATENCIES = ("ttft_s", "queue_s", "prefill_s", "decode_s", "tpot_s", "e2e_s")
COLUMNS = ("mean", "total", "p50", "p95")
"""Statistics that `run.parquet` has."""
Row = dict[str, Any]
PLAIN = "vllm-bench"
"""Tool whose rates are totals over its duration, and whose percentiles are NumPy's; others have their own ones."""


@dataclass(slots=True)
class Verified:
    """The stated numbers of one run."""

    name: str
    equal: list[Total] = field(default_factory=list)
    different: list[tuple[Total, float]] = field(default_factory=list)
    """With the value of the rows."""
    unknown: list[Total] = field(default_factory=list)
    """Numbers that cannot be recomputed."""


def verify_files(paths: list[Path], say: Callable[[str], object] = lambda sentence: None) -> Iterator[Verified]:
    """Yield what the rows of each run in files give for its stated numbers.

    `say` receives a sentence about files of no kind. Raises PromptError for a file that cannot be read.
    """
    for path in paths:
        if not path.exists():
            raise PromptError(f"{path} does not exist. hint: pass an export, or a result with its samples or requests.")
    others = list[Path]()
    for path in paths:
        folders = [path.parent] if path.name == STATED else sorted(file.parent for file in path.rglob(STATED))
        for folder in folders:
            yield from _verify_tables(folder)
        if not folders or (path.is_dir() and list_files(path)):
            others.append(path)
    for kind, files in find_files(others, None, say):
        for imported in read_files(kind, files):
            with reading(str(imported.files[0]), kind):
                part = f", part {imported.part}" if imported.part else ""
                recompute = _read_rows(imported) if imported.has_rows else lambda total: None
                found = ((total, recompute(total)) for total in imported.totals)
                yield _verify(f"{imported.files[0].name}{part}", found)


def _verify_tables(folder: Path) -> Iterator[Verified]:
    """Yield each run of exported tables: its rows of `metric_value.parquet`, and the same metrics in `run.parquet`."""
    try:
        stated, runs, *rows = (
            pq.read_table(folder / f"{name}.parquet") for name in ("metric_value", "run", "request", "score")
        )
        for run in runs.to_pylist():
            mine, requests, scores = (
                table.filter(pc.equal(table["run_id"], run["run_id"])).to_pylist() for table in (stated, *rows)
            )
            totals = [
                Total(row["metric"], row["statistic"], row["value"], row["unit"] or "", row["n"], row["detail"])
                for row in mine
                if row["value"] is not None
            ]
            recompute = _read_tables(requests, scores, totals)
            pairs = [(total, recompute(total)) for total in totals]
            for total, value in list(pairs):
                middle = f"_{total.statistic}" if total.statistic.startswith("p") else ""
                column = f"{total.metric.removesuffix('_s')}{middle}_s" if middle else total.metric
                shown = run.get(column) if total.detail in (None, run["scorer"]) else None
                if shown is not None and total.statistic in COLUMNS:
                    same = total._replace(value=float(shown), metric=f"run.parquet: {column}")
                    pairs.append((same, total.value if value is None else value))
            yield _verify(run["run_id"], pairs)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise PromptError(f"{folder} has no tables of an export: {error}. hint: export them again.") from None


def _read_tables(requests: list[Row], scores: list[Row], totals: list[Total]) -> Callable[[Total], float | None]:
    """Return the function that recomputes a number from rows of `request` and `score`, or returns None."""
    ok = [row for row in requests if row["status"] == "ok"]
    errors = sum(row["status"] == "error" for row in requests)
    cut = [row["truncated"] for row in ok if row["truncated"] is not None]
    measured = [row for row in ok if row["phase"] == "measured"]
    seconds = next((one.value for one in totals if one.metric == "measured_s"), None)
    counts: dict[str, float | None] = {
        "ok_requests": len(ok),
        "error_requests": errors,
        "answered_requests": len(ok) + errors,
        "unsent_requests": sum(row["status"] == "unsent" for row in requests),
        "measured_requests": sum(row["phase"] == "measured" for row in requests),
        "prompts": len({row["prompt_id"] for row in requests}),
        "error_share": errors / (len(ok) + errors) if ok or errors else None,
        "truncated_requests": sum(cut),
        "truncated_share": sum(cut) / len(cut) if cut else None,
        **{name: sum(row[name] or 0 for row in ok) for name in ("prompt_tokens", "output_tokens", "cached_tokens")},
    }
    means: dict[str, dict[Any, list[float]]] = {}
    for row in scores:
        means.setdefault(row["scorer"], {}).setdefault((row["prompt_id"], row["occurrence"]), []).append(row["value"])
    finished = [row for row in requests if row["is_finished"]]

    def recompute(total: Total) -> float | None:
        metric, statistic = total.metric, total.statistic
        if metric in AMOUNTS and statistic == "mean" and seconds and finished:
            return (
                sum(1 if name == "ok_requests" else row[name] or 0 for name in AMOUNTS[metric] for row in finished)
                / seconds
            )
        if total.detail is None and statistic in ("total", "mean") and metric in counts:
            return counts[metric]
        if found := means.get(total.detail or ""):
            samples = [value for values in found.values() for value in values]
            by_scorer = {
                ("accuracy", "mean"): float(np.mean([np.mean(values) for values in found.values()])),
                ("score_sum", "total"): sum(samples),
                ("right_samples", "total"): samples.count(1.0),
                ("scored_prompts", "total"): len({prompt_id for prompt_id, _ in found}),
            }
            return by_scorer.get((metric, statistic))
        values = [row[metric] for row in measured if row.get(metric) is not None] if metric in LATENCIES else []
        return _summarize(values, statistic) if values else None

    return recompute


def _verify(name: str, pairs: Iterable[tuple[Total, float | None]]) -> Verified:
    """Compare stated numbers with those of the rows."""
    verified = Verified(name)
    for total, value in pairs:
        if value is None:
            verified.unknown.append(total)
        elif math.isclose(value, total.value, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            verified.equal.append(total)
        else:
            verified.different.append((total, value))
    return verified


def _read_rows(imported: Imported) -> Callable[[Total], float | None]:
    """Read the rows of a run; return the function that recomputes a number, or returns None."""
    counts = dict.fromkeys(("ok_requests", "error_requests", "prompt_tokens", "output_tokens"), 0.0)
    times: dict[str, list[float]] = {name: [] for name in (*SPANS, "tpot_s", "itl_s")}
    scores: dict[str, dict[Any, list[float]]] = {}
    lacks_stamps = False
    for row in check_rows(imported):
        if isinstance(row, HarnessScore):
            scores.setdefault(row.scorer, {}).setdefault((row.prompt_id, row.occurrence), []).append(row.value)
        elif isinstance(row, Completion) and row.error_kind:
            counts["error_requests"] += 1
        elif isinstance(row, Completion):
            counts["ok_requests"] += 1
            counts["prompt_tokens"] += row.prompt_tokens or 0
            counts["output_tokens"] += row.output_tokens or 0
            for name, value in _measure(row):
                times[name].append(value)
            lacks_stamps |= row.token_at_s is None and (row.output_tokens or 0) > 1
    seconds = next((one.value for one in imported.totals if one.metric == "duration_s"), None)

    def recompute(total: Total) -> float | None:
        metric, statistic = total.metric, total.statistic
        if total.detail in scores and (metric, statistic) in (("accuracy", "mean"), ("standard_error", "accuracy")):
            means = [float(np.mean(values)) for values in scores[total.detail].values()]
            if metric == "accuracy":
                return float(np.mean(means))
            return float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None
        if metric in counts and statistic == "total":
            return counts[metric]
        if metric in AMOUNTS and statistic == "mean" and seconds and imported.tool == PLAIN:
            return sum(counts[name] for name in AMOUNTS[metric]) / seconds
        if not (values := sorted(times.get(metric, ()))) or (metric == "itl_s" and lacks_stamps):
            return None
        if statistic.startswith("p") and imported.tool != PLAIN:  # between its neighbors, by any definition
            share, last = float(statistic[1:]) / 100, len(values) - 1
            ends = values[math.floor(share * last)], values[min(last, math.ceil(share * (last + 1)))]
            return min(max(total.value, ends[0]), ends[1])
        return _summarize(values, statistic)

    return recompute


def _measure(row: Completion) -> Iterator[tuple[str, float]]:
    """Yield the latencies of an answer."""
    for name, (begin, end) in SPANS.items():
        ends = getattr(row, begin), getattr(row, end)
        if None not in ends:
            yield name, ends[1] - ends[0]
    if row.output_tokens and row.output_tokens > 1 and row.first_token_at_s is not None and row.last_token_at_s:
        yield "tpot_s", (row.last_token_at_s - row.first_token_at_s) / (row.output_tokens - 1)
    stamps = list(row.token_at_s or ())
    if stamps and row.first_token_at_s is not None and row.first_token_at_s < stamps[0]:
        stamps.insert(0, row.first_token_at_s)  # the empty event that opens a chat, which vllm bench counts
    for gap in np.diff(stamps):
        yield "itl_s", float(gap)


def _summarize(values: list[float], statistic: str) -> float | None:
    if statistic.startswith("p"):
        return float(np.percentile(values, float(statistic[1:])))
    summaries = {"mean": np.mean(values), "sd": np.std(values), "min": np.min(values), "max": np.max(values)}
    return float(summaries[statistic]) if statistic in summaries else None

"""Numbers that a file states, computed again from its own rows.

Scores, counts, tokens and latencies are recomputed; rates of vLLM's results too, by the duration that they state.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assayline.errors import PromptError
from assayline.imports.kinds import find_files
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
    for kind, files in find_files(paths, None, say):
        for imported in read_files(kind, files):
            with reading(str(imported.files[0]), kind):
                part = f", part {imported.part}" if imported.part else ""
                yield _verify(f"{imported.files[0].name}{part}", imported)


def _verify(name: str, imported: Imported) -> Verified:
    verified, recompute = Verified(name), _read_rows(imported) if imported.has_rows else lambda total: None
    for total in imported.totals:
        value = recompute(total)
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

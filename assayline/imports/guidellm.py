"""Reports of GuideLLM in JSON: each benchmark of a report is a run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assayline.imports.rows import Imported, RowMaker, Rows, describe_load, read_json, read_time
from assayline.imports.totals import read_totals
from assayline.records import NOT_SENT

TOOL = "guidellm"
CLOSED_LOOPS = ("concurrent", "synchronous")
PATTERNS = {"constant": "constant", "poisson": "poisson", "async": "poisson"}
"""Patterns of arrivals by GuideLLM's kinds of load that have a schedule."""
COUNTS = {"requests": "total", "completed": "successful", "failed": "errored"}


def read_report(path: Path) -> Iterator[Imported]:
    """Yield a run per benchmark of a report."""
    report = read_json(path)
    for number, benchmark in enumerate(report["benchmarks"]):
        strategy = {name: value for name, value in benchmark["config"]["strategy"].items() if value is not None}
        kind, totals = strategy["type_"], (benchmark.get("metrics") or {}).get("request_totals") or {}
        pace = strategy.get("streams") or strategy.get("rate")
        has_rows = any((benchmark.get("requests") or {}).values())
        yield Imported(
            tool=TOOL,
            version=report["metadata"]["guidellm_version"],
            model=benchmark["config"]["backend"]["model"],
            prompt_set=" ".join(map(str, filter(None, [TOOL, kind, pace]))),
            files=[path],
            part=str(number),
            rows=_read_rows(benchmark, has_schedule=kind in PATTERNS) if has_rows else (),
            totals=read_totals(TOOL, benchmark, totals.get("successful"))[0],
            started_s=read_time(benchmark["start_time"]),
            finished_s=read_time(benchmark["end_time"]),
            counts={name: totals.get(own) for name, own in COUNTS.items()},
            settings=strategy,
            load=describe_load(
                PATTERNS.get(kind),
                strategy.get("rate"),
                strategy.get("streams", 1) if kind in CLOSED_LOOPS else None,
            ),
        )


def _read_rows(benchmark: dict[str, Any], has_schedule: bool) -> Rows:
    rows = RowMaker(TOOL)
    requests = [
        (kind, one) for kind in ("successful", "errored", "incomplete") for one in benchmark["requests"][kind] or ()
    ]
    for kind, request in sorted(requests, key=lambda found: found[1]["info"]["timings"]["queued"] or 0):
        body = json.loads(request.get("request_args") or "{}").get("body") or {}
        messages = body.get("messages") or [{"role": "user", "content": body.get("prompt") or ""}]
        prompt = rows.prompt([{**message, "content": _read_text(message["content"])} for message in messages])
        yield prompt
        stamps = {
            name: None if stamp is None else round(stamp - benchmark["start_time"], 6)
            for name, stamp in request["info"]["timings"].items()
            if not name.endswith(("iterations", "count", "sum"))
        }
        times: dict[str, Any] = {"sent_at_s": stamps["request_start"], "arrived_at_s": stamps["request_start"]}
        if has_schedule:
            times["due_at_s"] = stamps["targeted_start"]
        if kind == "successful":
            yield from rows.answer(
                prompt,
                **times,
                first_token_at_s=stamps["first_token_iteration"],
                last_token_at_s=stamps["last_token_iteration"],
                finished_at_s=stamps["request_end"],
                prompt_tokens=request["prompt_tokens"],
                cached_tokens=request.get("cached_tokens"),
                output_tokens=request["output_tokens"],
                text=request["output"],
                reasoning=request.get("reasoning_output"),
            )
        else:
            error = request["info"].get("error") or "The benchmark ended before the answer was complete."
            name = "request_failed" if kind == "errored" else NOT_SENT
            yield from rows.answer(prompt, **times, error_kind=name, error_message=error)


def _read_text(content: Any) -> Any:
    """Return the text of a content that is one part with text."""
    is_text = isinstance(content, list) and len(content) == 1 and content[0].get("type") == "text"
    return content[0]["text"] if is_text else content

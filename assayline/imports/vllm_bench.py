"""Results of `vllm bench` and of its client in Rust: totals, and with `--save-detailed` times and lengths of requests.

Prompts are not in them. A prompt is identified by its number and length, so that runs over the same prompts pair.
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from assayline.digests import digest_json
from assayline.imports.rows import Imported, RowMaker, Rows, describe_load, read_json, read_time, say_missing
from assayline.imports.totals import name_others, read_totals

TOOL = "vllm-bench"
ARRAYS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")
LOAD = ("request_rate", "burstiness", "max_concurrency")
NO_SETTINGS = ("date", "model_id", "vllm_version", "run_number")
ELSE = {"elapsed_time": "throughput", "avg_latency": "latency"}
"""Commands without a load, by a number that only they state."""


def read_benchmark(path: Path) -> Iterator[Imported]:
    """Yield the run of a file, or those of a summary of a sweep."""
    found = read_json(path)
    for data in found if isinstance(found, list) else [found]:
        yield _read_run(path, data)


def _read_run(path: Path, data: dict[str, Any]) -> Imported:
    when, seconds = read_time(data.get("date")), data.get("duration")
    has_rows = all(name in data for name in ARRAYS)
    totals, others = read_totals(TOOL, data, data.get("completed") or len(data.get("latencies", ())) or None)
    numbers, settings = name_others({name: value for name, value in others.items() if name not in LOAD})
    rate, seats = data.get("request_rate"), data.get("max_concurrency")
    pace = f"concurrency {seats}" if rate == "inf" and seats else f"rate {rate}"
    command = next((word for name, word in ELSE.items() if name in data), pace)
    is_counted = has_rows or data.get("failed") is not None  # old versions leave failed requests out
    return Imported(
        tool=TOOL,
        version=data.get("vllm_version"),
        model=data.get("model_id", ""),  # older versions of throughput and latency leave it out
        prompt_set=" ".join(filter(None, [TOOL, data.get("label"), command])),
        files=[path],
        rows=_read_rows(data) if has_rows else (),
        totals=[*totals, *numbers],
        content=None if has_rows else data,
        ended="" if is_counted else say_missing(data.get("completed"), data.get("num_prompts"), "request"),
        started_s=None if when is None else read_time(when - (seconds or 0)),  # the date is that of the end
        finished_s=when,
        counts={name: data.get(name) for name in ("completed", "failed")},
        settings={name: data.get(name) for name in LOAD}
        | {name: value for name, value in settings.items() if name not in NO_SETTINGS},
        load=_read_load(data) if rate is not None else None,
    )


def _read_load(data: dict[str, Any]) -> dict[str, Any]:
    if (rate := data["request_rate"]) == "inf":
        return describe_load(None, None, data.get("max_concurrency"))
    load = describe_load("poisson", rate, None)
    return {**load, "arrival": {**load["arrival"], "burstiness": data.get("burstiness") or 1.0}}


def _read_rows(data: dict[str, Any]) -> Rows:
    rows = RowMaker(TOOL)
    begin = min(data["start_times"], default=0.0)
    for number, values in enumerate(zip(*(data[name] for name in ARRAYS), strict=True)):
        row = dict(zip(ARRAYS, values, strict=True))
        length, sent = row["input_lens"], row["start_times"] - begin
        prompt = rows.prompt([], prompt_id=digest_json([TOOL, number, length]))
        yield prompt
        if row["errors"] or not (row["ttfts"] or row["output_lens"]):  # a server may fail without a reason
            error: dict[str, Any] = {
                "error_kind": "request_failed",
                "error_message": row["errors"] or "No answer, and no reason.",
            }
            yield from rows.answer(prompt, sent_at_s=sent, arrived_at_s=sent, **error)
            continue
        has_tokens = row["ttfts"] > 0  # 0 of an answer that was not streamed
        stamps = [round(at, 6) for at in accumulate([sent + row["ttfts"], *row["itls"]])] if has_tokens else []
        of_tokens = stamps[1:] if "chat" in (data.get("backend") or "") else stamps  # an empty event opens a chat
        yield from rows.answer(
            prompt,
            sent_at_s=sent,
            arrived_at_s=sent,
            first_token_at_s=stamps[0] if stamps else None,
            last_token_at_s=stamps[-1] if stamps else None,
            finished_at_s=stamps[-1] if stamps else None,
            token_at_s=next((one for one in (stamps, of_tokens) if len(one) == row["output_lens"]), None),
            prompt_tokens=length,
            output_tokens=row["output_lens"],
            text=row["generated_texts"],
        )

"""One request as GuideLLM's reports have it: stamps in seconds since 1970, and what it derives from them."""

import json
from typing import Any

from assayline.store.database import Row

STATUSES = {"ok": "completed", "error": "errored"}


def describe_request(row: Row, started_s: float) -> dict[str, Any]:
    """A row of METRICS whose end is known; `started_s` is the zero of its stamps."""
    output_tokens, latency_s = row["output_tokens"], row["e2e_s"]
    total_tokens = sum(row[name] or 0 for name in ("prompt_tokens", "output_tokens"))
    info = _describe_progress(row, started_s)
    spent_s = _subtract(row["last_token_at_s"], row["arrived_at_s"])
    return {
        "type_": "generative_request_stats",
        "request_id": row["request_id"],
        "request_args": json.dumps(
            {"body": {"messages": json.loads(row["messages_json"]), **json.loads(row["sampling_json"])}},
            ensure_ascii=False,
        ),
        "output": row["text"],
        "reasoning_output": row["reasoning"],
        "info": info,
        "input_metrics": {
            "text_tokens": row["prompt_tokens"],
            "cached_tokens": row["cached_tokens"],
            "image_count": row["images"],
            "image_pixels": row["image_pixels"],
            "video_frames": row["video_frames"],
            "video_seconds": row["video_s"],
            "audio_seconds": row["audio_s"],
        },
        "output_metrics": {"text_tokens": output_tokens},
        "request_start_time": info["timings"]["request_start"],
        "request_end_time": info["timings"]["request_end"],
        "request_latency": latency_s,
        "request_dispatch_delay": _subtract(row["arrived_at_s"], row["due_at_s"]),
        "request_scheduled_latency": _subtract(row["finished_at_s"], row["due_at_s"]),
        "prompt_tokens": row["prompt_tokens"],
        "cached_tokens": row["cached_tokens"],
        "output_tokens": output_tokens,
        "total_tokens": total_tokens,
        "time_to_first_token_ms": _in_ms(row["ttft_s"]),
        "time_per_output_token_ms": _in_ms(spent_s / output_tokens if spent_s is not None and output_tokens else None),
        "inter_token_latency_ms": _in_ms(row["tpot_s"]),
        "tokens_per_second": total_tokens / latency_s if latency_s else None,
        "output_tokens_per_second": output_tokens / latency_s if latency_s and output_tokens is not None else None,
    }


def _describe_progress(row: Row, started_s: float) -> dict[str, Any]:
    def place(name: str) -> float | None:
        return None if row[name] is None else started_s + row[name]

    stamps = row["token_at_s"]
    return {
        "request_id": row["request_id"],
        "status": STATUSES[row["status"]],
        "error": row["error_message"],
        "timings": {
            "targeted_start": place("due_at_s"),
            "resolve_start": place("sent_at_s"),
            "request_start": place("arrived_at_s"),
            "first_token_iteration": place("first_token_at_s"),
            "first_output_token_iteration": place("first_token_at_s") if row["reasoning"] is None else None,
            "last_token_iteration": place("last_token_at_s"),
            "token_iterations": 0 if stamps is None else len(set(stamps)),
            "request_end": place("finished_at_s"),
            "resolve_end": place("finished_at_s"),
        },
    }


def _subtract(later: float | None, sooner: float | None) -> float | None:
    return None if later is None or sooner is None else later - sooner


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000

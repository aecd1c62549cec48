"""The content of an imported file: facts of a run, and its rows as records of the store.

A value that the file lacks is None and becomes NULL.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from assayline.digests import digest_json
from assayline.records import Completion, EngineEvent, Json, Prompt, Request
from assayline.requests.build import make_request_id
from assayline.store.score_files import HarnessScore

KIND = "imported"
"""Kind of the scorers of imported runs, in the table scorers."""

Rows = Iterator[Prompt | Request | Completion | EngineEvent | HarnessScore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One run of another tool."""

    tool: str
    version: str | None
    model: str
    prompt_set: str
    files: list[Path]
    """The files that it is read from; their digests identify it."""
    rows: Rows
    """Each prompt comes before its requests, and each request before its answer. Read once."""
    part: str = ""
    """Name of this run among several in the same files."""
    started_s: float | None = None
    """Unix time of its start."""
    finished_s: float | None = None
    settings: dict[str, Json] = field(default_factory=dict)
    """Settings of the tool that decide the answers or the speed."""
    scorers: dict[str, dict[str, Json]] = field(default_factory=dict)
    """`scorers.arguments_json` and `definition` by scorer, the most important one first."""
    load: dict[str, Json] | None = None
    """When requests were sent, as in a spec."""


class RowMaker:
    """Make the records of a run's prompts in their order, counting equal prompts."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._seen: Counter[int] = Counter()
        self.rows = 0
        """Number of prompts made."""

    def prompt(
        self, messages: list[dict[str, Json]], target: str | None = None, prompt_id: str | None = None, **fields: Any
    ) -> Prompt:
        """Return the next prompt. The default id is that of a prompt of a spec with these messages and target."""
        found = prompt_id or digest_json({"messages": messages, "target": target})
        key = int(found[:16], 16)
        fields.setdefault("source_id", None)
        prompt = Prompt(
            prompt_id=found, occurrence=self._seen[key], source_row=self.rows, messages=messages, target=target,
            **fields,
        )  # fmt: skip
        self._seen[key] += 1
        self.rows += 1
        return prompt

    def answer(
        self, prompt: Prompt, repeat_index: int = 0, request: Mapping[str, Any] | None = None, **fields: Any
    ) -> Iterator[Request | Completion]:
        """Yield a request and its answer. `request` has fields of the request, `fields` those of the answer."""
        asked: dict[str, Any] = {"prompt_token_ids": [], "sampling": {}, **(request or {})}
        request_id = make_request_id(
            prompt.prompt_id, prompt.occurrence, repeat_index, asked.get("option_index"), asked.get("turn_index")
        )
        name = (prompt.prompt_id, prompt.occurrence)
        yield Request(request_id=request_id, prompt_id=name[0], occurrence=name[1], repeat_index=repeat_index, **asked)
        fields = {"worker": self._tool, **fields}
        yield Completion(request_id=request_id, engine_generation=0, window_requests=None, **fields)


def score(scorer: str, prompt: Prompt, value: float, repeat_index: int = 0, **fields: Any) -> HarnessScore:
    """Return the score of a prompt's answer."""
    given = {"extracted": None, "explanation": f"{scorer} of the imported file", **fields}
    return HarnessScore(scorer, prompt.prompt_id, prompt.occurrence, value, repeat_index=repeat_index, **given)


def describe_scorer(tool: str, version: str | None, metric: str) -> dict[str, Json]:
    """Return the description of a metric of a tool for `Imported.scorers`."""
    return {"kind": KIND, "tool": tool, "metric": metric, "definition": f"{tool} {version or ''}".strip()}


def describe_load(arrival: str | None, rate_per_s: float | None, requests: int | None) -> dict[str, Json]:
    """Return the `load` of a spec: an open loop with this arrival and rate, or `requests` kept in flight."""
    if arrival is not None:
        given: dict[str, Json] = {"kind": arrival, "rate_per_s": rate_per_s}
    elif requests is not None:
        given = {"kind": "concurrency", "requests": requests}
    else:
        given = {"kind": "all_at_once"}
    limits = dict.fromkeys(("max_requests", "max_duration_s", "max_errors"))
    return {"arrival": given, "warmup_s": 0.0, "cooldown_s": 0.0, **limits}


def read_number(value: Any) -> float | None:
    """Return a number, or a Boolean as 0 or 1, also if it is written as text; None for other values."""
    if isinstance(value, str):
        value = {"True": 1.0, "False": 0.0}.get(value, value)
    try:
        return None if isinstance(value, list | dict | tuple) else float(value)
    except (TypeError, ValueError):
        return None


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_bytes())


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a JSONL file. A ValueError names the line."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number} is not valid JSON: {error}") from None


def read_time(text: str | None) -> float | None:
    """Convert an ISO 8601 time to Unix time."""
    return None if text is None else datetime.fromisoformat(text).timestamp()

"""The content of an imported file: facts of a run, and its rows as records of the store.

A value that the file lacks is None and becomes NULL. Rows enter a run through `check_rows` alone.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from assayline.digests import digest_json
from assayline.harness.judge import ALL_TASKS
from assayline.records import NOT_SENT, Completion, Json, Prompt, Request
from assayline.requests.build import make_request_id
from assayline.store.score_files import HarnessScore
from assayline.words import count

KIND = "imported"
"""Kind of the scorers of imported runs, in the table scorers."""

Rows = Iterator[Prompt | Request | Completion | HarnessScore]
KEYS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Prompt: ("prompt", attrgetter("prompt_id", "occurrence")),
    Request: ("request", attrgetter("request_id")),
    Completion: ("answer", attrgetter("request_id")),
    HarnessScore: ("score", attrgetter("scorer", "prompt_id", "occurrence", "repeat_index")),
}
WHOLES = ("prompts", "requests", "scores")
"""Counts that a partial file does not reach."""
ZONE: ContextVar[tzinfo] = ContextVar("zone", default=UTC)
"""Time zone of times without an offset."""
LAST_S = 2.0**33
"""A Unix time beyond this, in the year 2242, is not in seconds."""


class Total(NamedTuple):
    """A number that a file states, as a row of `metric_values` without an interval."""

    metric: str
    statistic: str
    value: float
    unit: str
    n: int | None = None
    detail: str | None = None
    """The scorer of a score."""
    higher_is_better: bool | None = None


@dataclass(slots=True, kw_only=True)
class Imported:
    """One run of another tool."""

    tool: str
    version: str | None
    model: str
    prompt_set: str
    files: list[Path]
    """The files that it is read from; their digests identify it."""
    rows: Rows | tuple[()] = ()
    """Each prompt comes before its requests, and each request before its answer. Read once."""
    totals: list[Total] = field(default_factory=list)
    """The numbers that the file states. They are stored if it has no rows."""
    content: Json = None
    """Content that identifies the run instead of its files, if several files may state it."""
    ended: str = ""
    """How it ended, if not well; rows may be missing then."""
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
    counts: dict[str, int | None] = field(default_factory=dict)
    """The file's own counts: `prompts`, `requests`, `scores`, and how many requests `completed` and `failed`."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user about rows that are not as expected."""

    @property
    def has_rows(self) -> bool:
        """Return whether it has requests; without them it has totals alone."""
        return not isinstance(self.rows, tuple)

    def check(self) -> None:
        """Raise ValueError for a file without a name of its model or task, or without any number."""
        for what, option, text in (("model", "model", self.model), ("task or data set", "name", self.prompt_set)):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"it does not name a {what}. hint: pass --{option} NAME")
        if not self.has_rows and not self.totals:
            raise ValueError("it has neither requests nor numbers")


def say_missing(has: int | None, wanted: int | None, name: str) -> str:
    """Return how many of the wanted ones there are; empty if all, or if a count is unknown."""
    if has is None or wanted is None or has >= wanted:
        return ""
    return f"{has:,} of {count(wanted, name)} {'is' if has == 1 else 'are'} in the file"


def check_rows(imported: Imported) -> Rows:
    """Yield each row of a file once, with None for NaN; repeated rows are counted in `imported.notes`.

    A file with fewer rows than its own count is partial, which `imported.ended` describes. Raises ValueError for a
    value that cannot be stored, and for more rows than the file's own counts.
    """
    seen: set[int] = set()
    repeated: Counter[str] = Counter()
    found: Counter[str] = Counter()
    types = {row: _list_types(row) for row in KEYS}
    for row in imported.rows:
        name, find_key = KEYS[type(row)]
        if (key := hash((name, find_key(row)))) in seen:
            repeated[name] += 1
            continue
        seen.add(key)
        found[name] += getattr(row, "scorer", None) != ALL_TASKS
        where = f"{name} {found[name]:,}"
        checked = {field: _check(where, field, getattr(row, field), kinds) for field, kinds in types[type(row)].items()}
        if isinstance(row, HarnessScore):
            if (number := read_number(row.value)) is not None:
                yield row._replace(value=number)
            continue
        if isinstance(row, Completion) and row.error_kind != NOT_SENT:
            found["failed" if row.error_kind else "completed"] += 1
        yield replace(row, **checked)
    if not found["request"]:
        raise ValueError("it has no requests")
    for what, wanted in imported.counts.items():
        has = found[name := what.removesuffix("s")]
        if what in WHOLES and wanted is not None and has < wanted != has + repeated[name]:
            imported.ended = say_missing(has, wanted, name)
        is_part = imported.ended and wanted is not None and has < wanted
        if wanted not in (None, has, has + repeated[name]) and not is_part:
            raise ValueError(
                f"its own count of {what} is {wanted:,}, and {has:,} are in it. hint: pass a complete file"
            )
    if repeated:
        rows = ", ".join(count(number, name) for name, number in repeated.items())
        imported.notes.append(f"The first of equal rows counts; left out as repeated: {rows}.")


def _list_types(row: type) -> dict[str, tuple[type, ...]]:
    """Return the types of a record's fields, by name, without fields of any JSON and scores."""
    hints = {name: hint for name, hint in get_type_hints(row).items() if hint is not Any and name != "value"}
    parts = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints.items()}
    return {name: tuple(get_origin(part) or part for part in given) for name, given in parts.items()}


def _check(where: str, field: str, value: Any, types: tuple[type, ...]) -> Any:
    """Return the value, or None for NaN. Raises ValueError for one that cannot be stored."""
    if isinstance(value, list) and field.endswith("_s"):
        return value if all(map(math.isfinite, value)) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isnan(value):
            return None
        is_stored = -(2**31) <= value < 2**31 or field.endswith("logprob")
        if is_stored and (float in types or (int in types and value == int(value))):
            return value
    elif isinstance(value, types):
        return value
    wanted = " or ".join(one.__name__ for one in types if one is not NoneType)
    raise ValueError(f"{where}: {field} is {value!r:.80}, expected {wanted}")


class RowMaker:
    """Make the records of a run's prompts in their order, counting equal prompts."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._seen: Counter[int] = Counter()
        self.rows = 0
        """Number of prompts made."""
        self.known: dict[Any, Prompt] = {}
        """Prompts by their names in the file, without what only their rows need."""

    def prompt(
        self,
        messages: list[dict[str, Json]],
        target: str | None = None,
        prompt_id: str | None = None,
        *,
        name: Any = None,
        **fields: Any,
    ) -> Prompt:
        """Return the next prompt. The default id is that of a prompt of a spec with these messages and target.

        With a `name`, `known` keeps it.
        """
        found = prompt_id or digest_json({"messages": messages, "target": target})
        key = int(found[:16], 16)
        prompt = Prompt(
            prompt_id=found, occurrence=self._seen[key], source_row=self.rows, messages=messages, target=target,
            **fields,
        )  # fmt: skip
        self._seen[key] += 1
        self.rows += 1
        if name is not None:
            self.known[name] = replace(prompt, messages=[], metadata={}, options=None)
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


def score(scorer: str, prompt: Prompt, value: Any, repeat_index: int = 0, **fields: Any) -> HarnessScore:
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
    """Return a number, or a Boolean as 0 or 1, also if it is written as text; None for NaN and other values."""
    if isinstance(value, str):
        value = {"True": 1.0, "False": 0.0}.get(value, value)
    try:
        number = math.nan if isinstance(value, list | dict | tuple) else float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return math.inf
    return None if math.isnan(number) else number


def read_time(value: Any) -> float | None:
    """Convert an ISO 8601 or Unix time to Unix time. Without an offset, the time is that of ZONE. Raises ValueError."""
    at = None if isinstance(value, str) and len(value) == len("20260101") else read_number(value)
    if at is None and isinstance(value, str) and value and value.lower() != "nan":
        moment = datetime.fromisoformat(value)
        at = (moment if moment.tzinfo else moment.replace(tzinfo=ZONE.get())).timestamp()
    if at is not None and not 0 <= at < LAST_S:
        raise ValueError(f"the time {value} is not in seconds since 1970")
    return at


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_bytes())


def read_places(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield position and value of each line of a JSONL file. A ValueError names the line."""
    with path.open("rb") as lines:
        place = 0
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"line {number} of {path.name} is not valid JSON: {error}") from None
                yield place, value
            place += len(line)


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a JSONL file. A ValueError names the line."""
    return (value for _, value in read_places(path))


def join_text(content: Any) -> Any:
    """Return the text of a message's content, which may be a list of parts."""
    if not isinstance(content, list):
        return content
    return "".join(part.get("text") or "" for part in content if part.get("type") == "text")

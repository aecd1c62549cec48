"""The scorer verdict: a judge's verdict as a number."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from assayline.scorers import Score, shorten
from assayline.scorers.json import strip_fence

TRAILING_COMMA = re.compile(r",(\s*[}\]])")


def score_verdict(
    answer: str,
    target: str | None,
    row: dict[str, Any],
    values: Mapping[str, float] | None = None,
    scale: Sequence[float] | None = None,
) -> Score:
    """Return the value of the verdict in a judge's answer, a JSON object, with the judge's reason.

    `values` maps each verdict to its value, whatever its case. With `scale` the verdict is a number from the first to
    the second, and its value grows evenly from 0 to 1. A judge of pairs sees each pair in both orders: if it saw the
    second run's answer first, as `row` tells, the value is 1 minus that. An unreadable verdict has the value 0 and
    nothing extracted.
    """
    if (told := _read_object(answer)) is None:
        return Score(0.0, None, "not a JSON object")
    if (verdict := _as_text(told.get("verdict"))) is None:
        return Score(0.0, None, "no verdict in the JSON object")
    if scale:
        word, value = _read_scale(told["verdict"], scale)
    else:
        word = next((word for word in values or {} if word.lower() == verdict.lower()), None)
        value = None if word is None else (values or {})[word]
    if value is None:
        return Score(0.0, None, f"an unknown verdict: {shorten(verdict)}")
    is_swapped = isinstance(row.get("other"), dict) and "run_id" in row["other"] and row.get("first") == "b"
    return Score(1 - value if is_swapped else value, word, _as_text(told.get("reason")))


def _read_object(answer: str) -> dict[str, Any] | None:
    """Return the object in a judge's answer; a trailing comma is forgiven, and the first of equal keys counts."""
    text = strip_fence(answer)
    for given in (text, TRAILING_COMMA.sub(r"\1", text)):
        with suppress(ValueError, RecursionError):
            told = json.loads(given, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
            return told if isinstance(told, dict) else None
    return None


def _read_scale(verdict: Any, scale: Sequence[float]) -> tuple[str | None, float | None]:
    low, high = scale
    try:
        number = None if isinstance(verdict, bool) else float(verdict)
    except (TypeError, ValueError):
        return None, None
    if number is None or not low <= number <= high:
        return None, None
    return str(int(number)) if number == int(number) else repr(number), (number - low) / (high - low)


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

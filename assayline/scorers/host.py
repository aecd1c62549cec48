"""The process that runs one scoring function: `python -m assayline.scorers.host MODULE:FUNCTION`.

The first line of standard input is a JSON object with the function's keyword arguments (`arguments`), the answers per
call (`batch`; 1: the function takes one answer) and the memory limit (`memory_bytes`). Each further line is a JSON list
of answers `[answer, target, row]`. Each gets one line back: a list of scores as lists, or null, or `{"error": …}`.
What the function prints goes to standard error.
"""

import importlib
import json
import math
import os
import resource
import sys
from collections.abc import Callable
from typing import Any, cast

from assayline.scorers import Score


def main() -> None:
    """Answers until standard input ends."""
    sys.dont_write_bytecode = True  # it is checked by second and size: code edited at once would run as it was
    answers_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_DATA, (order["memory_bytes"], order["memory_bytes"]))

    def reply(value: object) -> None:
        answers_to.write(json.dumps(value) + "\n")
        answers_to.flush()

    try:
        function = load_function(sys.argv[1])
    except Exception as error:
        reply({"error": describe(error)})
        return
    reply([])
    for line in sys.stdin:
        try:
            reply(score(function, json.loads(line), order["arguments"], order["batch"] > 1))
        except Exception as error:
            reply({"error": describe(error)})


def load_function(reference: str) -> Callable[..., Any]:
    """Imports it. Raises whatever its module raises, AttributeError or TypeError."""
    module, _, name = reference.partition(":")
    function: Any = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{reference} is {type(function).__name__}, not a function")
    return cast("Callable[..., Any]", function)


def score(function: Callable[..., Any], answers: list[Any], arguments: dict[str, Any], in_batches: bool) -> list[Any]:
    """Scores answers by one call each, or all by one call. Raises ValueError for what is not a score."""
    if not in_batches:
        return [read_score(function(*answer, **arguments)) for answer in answers]
    scores = list(function(*map(list, zip(*answers, strict=True)), **arguments))
    if len(scores) != len(answers):
        raise ValueError(f"the function returned {len(scores)} scores for {len(answers)} answers")
    return [read_score(value) for value in scores]


def read_score(returned: Any) -> Score | None:
    """Return the score that a number, a tuple of these, or a mapping means; None means that there is no score.

    Raises ValueError unless the value is a number from 0 to 1.
    """
    if returned is None:
        return None
    extracted: Any = None
    reason: Any = ""
    found_by = returned.found_by if isinstance(returned, Score) else None
    if isinstance(returned, dict):
        if unknown := returned.keys() - {"score", "extracted", "reason"}:
            raise ValueError(
                f"the function returned the keys {sorted(map(str, unknown))}; expected score, extracted, reason"
            )
        returned, extracted, reason = returned.get("score"), returned.get("extracted"), returned.get("reason") or ""
    elif isinstance(returned, (tuple, list)):
        given = returned[:3] if isinstance(returned, Score) else returned
        if not 1 <= len(given) <= 3:
            raise ValueError(f"the function returned {len(given)} values; expected score, extracted, reason")
        returned, extracted, reason = (*given, None, "")[:3] if len(given) < 3 else given
    try:
        value = float(returned)
    except (TypeError, ValueError):
        raise ValueError(f"the function returned {returned!r:.100}; expected a number from 0 to 1") from None
    if math.isnan(value) or not 0 <= value <= 1:
        raise ValueError(f"the function returned {value}; expected a number from 0 to 1")
    return Score(value, None if extracted is None else str(extracted)[:10_000], str(reason or "")[:1000], found_by)


def describe(error: Exception) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


if __name__ == "__main__":
    main()

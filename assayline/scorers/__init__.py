"""Scorers: each is a function `score(answer, target, row, **arguments)` that returns a Score.

`text.py`, `numbers.py`, `letters.py`, `json.py`, `verdict.py`, `likelihood.py`, `math.py` and `code.py` have
assayline's own. `process.py` asks functions in processes, and `host.py` is what runs there.
"""

from typing import NamedTuple


class Score(NamedTuple):
    """The score of one answer."""

    value: float
    """From 0 to 1."""
    extracted: str | None = None
    """The part of the answer that counts; None if none was found."""
    reason: str | None = ""
    found_by: str | None = None
    """How a number or letter was found: stated, only (nothing else could be meant) or last (of several)."""
    failure: str | None = None
    """Why the scorer failed, if it did; the value is then 0."""


MOST_QUOTED_CHARS = 60


def shorten(text: str) -> str:
    """Return at most 60 characters for a reason, which is stored once per answer."""
    return text if len(text) <= MOST_QUOTED_CHARS else text[: MOST_QUOTED_CHARS - 3] + "…"

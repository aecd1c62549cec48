"""Format values and text for people: numbers with units, and text escaped for Markdown and terminals."""

import difflib
import json
import re
from collections.abc import Callable
from typing import Any

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters except \\n and tab, and lone surrogates, which cannot be written to a file."""
MARKDOWN = re.compile(r"[\\`*_{}\[\]<>#|&~]")
DASH = "–"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine in URLs."""
SPACE = "\u00a0"
"""Non-breaking space between a number and its unit."""


METRIC_NAMES = {
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "requests_per_s": "requests/s",
    "offered_requests_per_s": "offered requests/s",
    "good_requests_per_s": "good requests/s",
    "good_output_tokens_per_s": "good output tokens/s",
    "cost_per_right_answer": "cost per correct answer",
    "full_cost_per_right_answer": "cost per correct answer, loading and downtime included",
    "cost_per_million_output_tokens": "cost per million output tokens",
    "cost_per_thousand_requests": "cost per thousand requests",
    "energy_per_output_token_joules": "energy per output token",
    "energy_per_request_joules": "energy per request",
    "batch_latency_p50_s": "batch latency p50",
    "load_s": "load time",
    "warmup_s": "warm-up time",
}
"""Names of metrics; those of latencies follow from the column."""


def name_metric(metric: str) -> str:
    """Return the one name of a metric on every page and terminal: `TTFT p50` for ttft_p50_s. An unknown one keeps its
    own.
    """
    if found := re.fullmatch(r"(ttft|tpot|itl|e2e)(?:_(p\d+))?_s", metric):
        return " ".join(filter(None, (found[1].upper(), found[2])))
    return METRIC_NAMES.get(metric, metric)


def show_value(value: object) -> str:
    """Format a table value: a dash for None, three significant digits for fractions."""
    if value is None:
        return DASH
    if isinstance(value, float) and not value.is_integer():
        return _three_digits(value)
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def show_bytes(value: float) -> str:
    """Format a size in bytes, in KiB, MiB or GiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if value >= size:
            return f"{_three_digits(value / size)}{SPACE}{unit}"
    return f"{_three_digits(value / 2**10)}{SPACE}KiB"


def show_text(value: object) -> str:
    """Format a text value; None is a dash."""
    return DASH if value is None else str(value)


def show_known(value: object) -> str:
    """Format a value like `show_value`; None is an empty string."""
    return "" if value is None else show_value(value)


def show_number(text: str) -> str:
    """Return text that is a number already: a table aligns it as one."""
    return text


def show_name(value: object) -> str:
    """Format a name or an id, such as a model's or a run's: a table keeps it on one line."""
    return show_text(value)


def show_note(text: str) -> str:
    """Return a remark about the row: a page shows it on a separate line below the row."""
    return text


def show_metric(value: float | None, unit: str | None) -> str:
    """Format a value with its unit: a share as a percentage, a time in a suitable unit."""
    if value is None or unit is None:
        return show_value(value)
    if unit.endswith("/s"):
        return show_rate(value, unit.removesuffix("/s"))
    if value == 1 and len(unit) > 2 and unit.endswith("s"):  # 1 request
        unit = unit[:-1]
    shows = {"share": show_share, "s": show_seconds}
    return shows[unit](value) if unit in shows else show_money(value, unit)


def show_money(value: float | None, currency: str) -> str:
    """Format an amount with three significant digits, small ones in millionths or billionths of the currency."""
    if value is None:
        return DASH
    for prefix, factor, below in (("n", 1e9, 1e-8), ("µ", 1e6, 1e-3)):
        if 0 < abs(value) < below:
            return f"{_three_digits(value * factor)}{SPACE}{prefix}{currency}"
    return f"{_three_digits(value)}{SPACE}{currency}"


def show_share(value: float | None) -> str:
    """Format a share of 0 to 1 as a percentage. Only 1 becomes 100%, and only 0 becomes 0%."""
    if value is None:
        return DASH
    text = f"{100 * value:.1f}"
    if (text == "100.0" and value < 1) or (text == "0.0" and value > 0):
        text = "99.99" if value > 0.5 else f"{100 * value:.2g}"
    return f"{text.removesuffix('.0')}%"


def show_points(value: float | None) -> str:
    """Format a difference of two shares in percentage points, with its sign."""
    return DASH if value is None else f"{_signed(100 * value)}{SPACE}points"


def show_size(value: float) -> str:
    """Format the size of a difference of two shares in percentage points."""
    text = f"{100 * value:.3g}"
    return f"{text}{SPACE}{'point' if text == '1' else 'points'}"


def show_change(value: float | None) -> str:
    """Format a relative change as a percentage, with its sign, or from twice the value on as a factor."""
    if value is not None and value >= 1:
        return f"×{_three_digits(1 + value)}"
    return DASH if value is None else f"{_signed(100 * value)}%"


def show_changes(changes: object) -> str:
    """Format {"window_requests": {"from": 80, "to": 40}} as max concurrency 80 → 40."""
    try:
        found = json.loads(str(changes)) if changes else {}
        words = dict.fromkeys(("window_requests", "max_concurrency"), "max concurrency")
        return ", ".join(f"{words.get(name, name)} {one['from']} → {one['to']}" for name, one in found.items())
    except (ValueError, TypeError, KeyError, AttributeError):
        return str(changes)


def show_limit(on: str, limit: float | None, unit: str | None, baseline: float | None) -> str:
    """Format a gate's limit as the change that it allows, such as `−1 point` or `+10%`; of errors and costs, its value.

    `on` is the subject of the limit. A cost without a baseline is limited by value.
    """
    if limit is None:
        return DASH
    if unit == "nats/token":
        return show_metric(limit, unit)
    if baseline is None and on.startswith(("cost", "energy")):
        return show_value(limit)
    if on != "errors" and unit == "share":
        return f"{'−' * bool(limit)}{show_size(limit)}"
    return f"{'' if on == 'errors' else '−' if on.endswith('_per_s') else '+'}{100 * limit:g}%"


def show_ratio(value: float | None) -> str:
    """Format a difference as a multiple of the noise floor; empty if that is unknown."""
    return "" if value is None else f"{value:.2g} × noise"


def show_seconds(value: float | None) -> str:
    """Format a duration in a suitable unit with three significant digits."""
    if value is None:
        return DASH
    if value == 0:
        return f"0{SPACE}s"
    size = abs(value)
    for unit, factor, below in (("µs", 1e6, 1e-3), ("ms", 1e3, 1.0), ("s", 1.0, 600.0), ("min", 1 / 60, 36_000.0)):
        if size < 0.9995 * below:  # larger values would be rounded to the limit itself
            return f"{_three_digits(value * factor)}{SPACE}{unit}"
    return f"{_three_digits(value / 3600)}{SPACE}h"


def show_rate(value: float | None, what: str = "") -> str:
    """Format a rate per second."""
    return DASH if value is None else f"{_three_digits(value)}{SPACE}{what}/s"


def show_kappa(value: float | None) -> str:
    """Format a kappa or an alpha with two decimals."""
    return DASH if value is None else f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


NUMBER_SHOWS: frozenset[Callable[[Any], str]] = frozenset(
    {
        show_value,
        show_known,
        show_number,
        show_share,
        show_points,
        show_change,
        show_ratio,
        show_seconds,
        show_rate,
        show_kappa,
    }
)
"""Formatters of numbers: tables right-align their columns."""


def show_range(low: str, high: str) -> str:
    """Format an interval of two formatted values; a unit that both share appears once. Empty if an end is unknown."""
    if DASH in (low, high):
        return ""
    found = re.fullmatch(rf"(.+?)({SPACE}.+|%)", low)
    return f"{found[1] if found and high.endswith(found[2]) else low} to {high}"


def count(number: int | float | None, noun: str, plural: str | None = None) -> str:
    """Format a number and its noun: 1 request, 2 requests."""
    many = plural or f"{noun}s"
    return f"no {many}" if not number else f"{number:,.0f} {noun if number == 1 else many}"


def as_sentence(text: str) -> str:
    """End a text from elsewhere with a full stop, so that another sentence can follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def make_visible(text: str) -> str:
    """Replace control characters with their escapes; line breaks and tabs stay."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_markdown(text: str) -> str:
    """Escape text for a line of Markdown."""
    return MARKDOWN.sub(r"\\\g<0>", _as_line(text))


def as_code(text: str) -> str:
    """Format text as inline code in Markdown, with more backticks than it contains."""
    line = _as_line(text)
    if "`" not in line:
        return f"`{line}`"
    fence = "`" * (max(len(ticks) for ticks in re.findall("`+", line)) + 1)
    return f"{fence} {line} {fence}"


def as_block(text: str) -> str:
    """Format text as a fenced code block, with a longer fence than any in it."""
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text)), 3)
    return f"{fence}text\n{text}\n{fence}"


def _as_line(text: str) -> str:
    """Return text on one line, without control characters; non-breaking spaces stay."""
    return make_visible(re.sub(rf"[^\S{SPACE}]+", " ", text).strip())


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def nearest(name: str, known: list[str]) -> str:
    """Return a clause that suggests the nearest known name, or lists the known names."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known)[:40])}"


def hide_folder(value: Any) -> Any:
    """Return the last part of an absolute path, for files that leave this machine; other values as they are."""
    is_path = isinstance(value, str) and value.startswith("/")
    return value.rstrip("/").rpartition("/")[2] if is_path else value


def hide_secrets(text: str) -> str:
    """Remove the parts of URLs that may hold credentials: users before hosts, and queries."""
    return re.sub(r"(?<=[^\s<])\?[^\s<>\"']+", "?…", re.sub(r"://[^\s/@]+@", "://…@", text))

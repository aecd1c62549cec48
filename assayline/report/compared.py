"""Comparisons and limits as rows of one table each, whatever is compared: runs, configurations, models of a board."""

from collections.abc import Iterable, Sequence

from assayline.comparison.gate import Check
from assayline.report.document import Column, Table, tabulate
from assayline.stats.worse import SHOWN, Comparison
from assayline.words import (
    name_metric,
    show_change,
    show_limit,
    show_metric,
    show_name,
    show_note,
    show_number,
    show_points,
    show_range,
    show_share,
    show_value,
)

LIMITS = (
    Column("limit on", lambda check: name_metric(check.check)),
    Column("verdict", lambda check: check.verdict),
    Column("run", lambda check: show_metric(check.candidate, check.unit), show_number),
    Column("baseline", lambda check: show_metric(check.baseline, check.unit), show_number),
    Column("limit", lambda check: show_limit(check.check, check.limit, check.unit, check.baseline), show_number),
)


def tabulate_limits(caption: str, checks: Sequence[Check], *, has_words: bool = False) -> Table:
    """Tabulate the limits of a gate, and the finding of each, if it is not that of another limit too."""
    first = {check.words: check for check in reversed(checks)}
    note = Column("note", lambda check: check.words if first[check.words] is check else "", show_note)
    return tabulate(caption, [*LIMITS, note] if has_words else LIMITS, checks)


Compared = tuple[tuple[str, ...], Comparison, str]
"""Names, such as that of a model, for the first columns; the comparison; its verdict in words."""


def show_difference(found: Comparison) -> str:
    """Format the difference: points of scores, and otherwise a percentage of the baseline."""
    return (show_points if found.method == "prompts" else show_change)(found.difference)


def show_interval(found: Comparison) -> str:
    """Format the 95% interval of the difference. That of a change is of logarithms, so no decrease exceeds 100%."""
    if found.method == "prompts":
        return show_range(show_points(found.low), show_points(found.high))
    if found.low is not None and found.high is not None and found.high >= 1:
        return f"×{1 + found.low:.3g} to ×{1 + found.high:.3g}"
    return show_range(show_change(found.low), show_change(found.high))


def _show_level(found: Comparison, value: float | None) -> str:
    return show_share(value) if found.method == "prompts" else show_metric(value, found.unit)


def _show_limit(found: Comparison) -> str:
    if not found.limit:
        return ""
    return show_points(-found.limit) if found.method == "prompts" else show_share(found.limit)


def _show_p(found: Comparison, verdict: str) -> str:
    """Format the p at the limit; that of a gate's verdict is 1 for a run that is better."""
    p_value = found.p_worse if any(verdict.endswith(words) for words in SHOWN.values()) else found.p_beyond
    return "" if p_value is None else f"{p_value:.2g}"


def _show_counts(found: Comparison) -> str:
    new, old = found.counts
    return f"{new:,}" if found.method == "prompts" else f"{new:,} and {old:,}"


def _show_changed(found: Comparison) -> str:
    row = found.pairs
    return f"{row['worse_prompts']:,} / {row['better_prompts']:,}" if row else ""


CHANGE = (
    Column("run", lambda row: _show_level(row[1], row[1].value), show_number),
    Column("baseline", lambda row: _show_level(row[1], row[1].baseline_value), show_number),
    Column("change", lambda row: show_difference(row[1]), show_number),
    Column("95% CI", lambda row: show_interval(row[1]), show_number),
)
P = (Column("p", lambda row: row[1].p_value, show_value),)
AT_LIMIT = (
    Column("limit", lambda row: _show_limit(row[1]), show_number),
    Column("p at the limit", lambda row: _show_p(row[1], row[2]), show_number),
)
COUNTS = (
    Column("worse / better", lambda row: _show_changed(row[1]), show_number),
    Column("n", lambda row: _show_counts(row[1]), show_number),
)
VERDICT = (
    Column("pairs with an error", lambda row: row[1].pairs.get("error_pairs"), show_value),
    Column("verdict", lambda row: row[2].replace("_", " "), show_name),
)


def tabulate_comparisons(
    caption: str, names: Sequence[str], rows: Iterable[Compared], *, is_judged: bool = True, is_folded: bool = False
) -> Table:
    """Tabulate comparisons, with a column for each of `names`; if they are not judged, with the p of no difference."""

    def name_at(place: int) -> Column:
        return Column(names[place], lambda row: row[0][place], show_name)

    named = list(map(name_at, range(len(names))))
    columns = [*CHANGE, *AT_LIMIT, *COUNTS, *VERDICT] if is_judged else [*CHANGE, *P, *COUNTS]
    return tabulate(caption, [*named, *columns], rows, is_folded)

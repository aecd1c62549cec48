"""Report section about the moment of requests: whether scores depend on load, engine or time."""

from assayline.report.charts import draw_intervals
from assayline.report.document import Chart, Column, Section, tabulate
from assayline.report.run.rows import ReportRows
from assayline.store.database import Row
from assayline.words import count, show_known, show_points, show_range, show_share, show_value

FACTORS = {
    "in_flight": "requests in flight",
    "preemptions": "preemptions",
    "cached_share": "cached share of the prompt",
    "position": "position in the run",
    "worker": "worker",
    "engine": "engine",
}
OUTCOMES = {"score": "mean score", "flip": "share of answers with another text"}
COLUMNS = (
    Column("factor", lambda row: FACTORS[row["factor"]]),
    Column("of", lambda row: OUTCOMES[row["outcome"]]),
    Column("values", "split"),
    Column("prompts", "split_prompts", show_value),
    Column("mean", "split_mean", show_share),
    Column("others", "other_mean", show_share),
    Column("p", "p_value", show_known),
    Column("p, all factors", "adjusted_p", show_known),
    Column("named", lambda row: "yes" if row["is_named"] else ""),
)


def describe_moment(rows: ReportRows) -> Section | None:
    """Build the section about factors that the scores or texts depend on; None if there is none."""
    named = [row for row in rows.factors if row["is_named"]]
    if not named:
        return None
    section = Section("moment", "Dependence on load, engine or time")
    for row in named:
        section.say(_say_factor(row), is_warning=True)
    if shown := [row for row in rows.levels if row["low"] is not None]:
        factor, outcome = FACTORS[named[0]["factor"]], OUTCOMES[named[0]["outcome"]]
        words = "; ".join(
            f"{row['name']}: {show_share(row['mean'])} "
            f"({show_range(show_share(row['low']), show_share(row['high']))}, {count(row['prompts'], 'prompt')})"
            for row in shown
        )
        title = f"{outcome.capitalize()} by {factor}"
        section.add(Chart(title, f"{title}, with 95% intervals: {words}.", draw_intervals(shown, outcome, factor)))
    section.add(tabulate("Tested factors", COLUMNS, rows.factors))
    section.say(
        "The means are not adjusted for difficulty. The tests compare prompts with the baseline, or with their "
        "neighbors. Factors that go together have small p together: the one with the strongest evidence is named."
    )
    return section


def say_no_factor(rows: ReportRows) -> str:
    """Report that no factor was found, and which effect would have been; empty if one was, or none could be tested."""
    judged = [row for row in rows.factors if row["outcome"] == "score"]
    effects = sorted(row["minimum_effect"] for row in judged)
    if not effects or any(row["is_named"] for row in rows.factors):
        return ""
    names = ", ".join(name for factor, name in FACTORS.items() if any(row["factor"] == factor for row in judged))
    ends = dict.fromkeys(show_points(effect).lstrip("+") for effect in (effects[0], effects[-1]))
    return (
        f"No dependence of the score on load, engine or time was found ({names}). The smallest effect that would be "
        f"seen in 80% of runs: a difference of {show_range(*ends) if len(ends) > 1 else next(iter(ends))} between two "
        "parts of the prompts."
    )


def _say_factor(row: Row) -> str:
    return (
        f"{OUTCOMES[row['outcome']].capitalize()} depends on {FACTORS[row['factor']]}: "
        f"{show_share(row['split_mean'])} with {row['split']} ({count(row['split_prompts'], 'prompt')}), "
        f"{show_share(row['other_mean'])} otherwise (p {show_value(row['adjusted_p'])} over all tested factors)."
    )

"""What a reader of a history must know first: which levels shifted, since when, by how much, and what the gate said.

A shift is named with the conditions that changed on its first night, or since the night before that counts: whether
they are the cause, a reader knows better.
"""

from assayline.comparison.levels import FEWEST_NIGHTS
from assayline.report.history.rows import HistoryRows, LevelShift, list_counted
from assayline.store.database import Row
from assayline.words import count, show_range

MOST_SENTENCES = 4


def write_headline(rows: HistoryRows) -> list[str]:
    """What a reader must know, most important first."""
    lasting = sorted((one for one in rows.shifts if one.until is None), key=lambda one: not one.is_worse)
    over = [one for one in rows.shifts if one.until is not None]
    is_broken = rows.newest["verdict"] == "broken"
    sentences = [f"{_say_newest(rows)}"] if is_broken else []
    sentences += [say_shift(one, rows) for one in lasting[:MOST_SENTENCES]]
    if len(lasting) > MOST_SENTENCES:
        sentences.append(f"{count(len(lasting) - MOST_SENTENCES, 'more shift')} of level is listed below.")
    if over:
        sentences.append(f"{count(len(over), 'earlier level', 'earlier levels')} ended again, and is listed below.")
    if not rows.shifts:
        sentences.append(say_no_shift(rows))
    sentences.append(_say_verdicts(rows))
    if rows.obstacle:
        sentences.append(f"There is no baseline to show. {rows.obstacle}")
    if rows.others:
        sentences.append(
            f"Other runs of this name are not shown: {', '.join(rows.others[:3])}. The id of one of them, in place of "
            "the name, gives their history."
        )
    return [sentence for sentence in sentences if sentence]


def say_shift(one: LevelShift, rows: HistoryRows) -> str:
    """Since which night, by how much, and what else changed then."""
    shift, metric = one.shift, one.metric
    interval = show_interval(one)
    told = f" (95 % interval {interval})" if interval else ""
    return (
        f"{metric.title} is {'worse' if one.is_worse else 'better'} since {show_night(one.run)}: "
        f"{metric.show(shift.before)} before, {metric.show(shift.after)} since, by "
        f"{metric.show_shift(shift.change, shift.before)}{told}.{_say_cause(one, rows)}"
    )


def _say_cause(one: LevelShift, rows: HistoryRows) -> str:
    """Conditions that changed between the last counted night before and the first of the new level."""
    counted = list_counted(rows.values[one.metric.key])
    last = max(row["position"] for row in counted if row["position"] < one.run["position"])
    changed = [row for row in rows.changes if last < row["position"] <= one.run["position"]]
    if not changed:
        return " No condition that is recorded changed then."
    named = "; ".join(f"{row['condition']} ({row['words']})" for row in changed)
    return f" Changed since the run before: {named}."


def say_no_shift(rows: HistoryRows) -> str:
    """Why none is shown."""
    nights = max((len(list_counted(values)) for values in rows.values.values()), default=0)
    if len(rows.runs) == 1:
        return "This is the first run: a history begins with the second."
    if nights < FEWEST_NIGHTS:
        return (
            f"{count(nights, 'run')} that {'counts' if nights == 1 else 'count'} cannot tell a shift of level from "
            f"chance: {FEWEST_NIGHTS} are needed."
        )
    return f"No level has shifted by more than chance in {count(nights, 'run')}."


def _say_verdicts(rows: HistoryRows) -> str:
    judged = [run for run in rows.runs if run["verdict"]]
    broken = [run for run in judged if run["verdict"] == "broken"]
    if not judged:
        return "No gate has judged any of these runs."
    last = "" if rows.newest["verdict"] == "broken" else f" {_say_newest(rows)}"
    return f"Of {count(len(judged), 'run')} that a gate judged, {len(broken)} broke a limit.{last}"


def _say_newest(rows: HistoryRows) -> str:
    state = rows.newest["state"]
    verdict = {
        "broken": f"broke its limits: {rows.newest['verdict_words']}",
        "held": "was within its limits.",
        "not judged": "could not be judged.",
        None: f"was not judged{'' if state == 'completed' else ': it is ' + state}.",
    }[rows.newest["verdict"]]
    return f"The newest, {show_night(rows.newest)}, {verdict}"


def show_night(run: Row) -> str:
    """A run by when it started."""
    return f"{run['started_at']:%Y-%m-%d %H:%M}"


def show_interval(one: LevelShift) -> str:
    """The 95 % interval of its change; empty where there is none."""
    shift, metric = one.shift, one.metric
    return show_range(*(metric.show_shift(end, shift.before) for end in (shift.low, shift.high)))

"""Rows of the history page: runs, values, changed conditions, baseline band and level shifts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from assayline.comparison.baselines import resolve_baseline
from assayline.comparison.levels import FEWEST_NIGHTS, Shift, find_shifts, is_tellable
from assayline.comparison.queries import read_band
from assayline.errors import SpecError
from assayline.report.measures import head
from assayline.spec.identity import list_setting_changes
from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import ensure_metrics, ensure_repeats
from assayline.words import as_sentence, name_metric, nearest, show_change, show_metric, show_points, show_range

FALSE_ALARMS = 0.05
"""Expected share of pages that show a shift when there is none; divided among the tested metrics."""
METRICS = (
    "accuracy", "output_tokens_per_s", "ttft_p50_s", "tpot_p50_s", "e2e_p95_s", "cost_per_right_answer",
)  # fmt: skip
"""Metrics of the page, as in `run_metric`."""
LONGEST_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelShift:
    """A level shift of a metric."""

    metric: str
    unit: str
    shift: Shift
    run: Row
    """First run of the new level, a row of history."""
    until: Row | None
    """First run after it; None while it lasts."""
    is_worse: bool

    @property
    def title(self) -> str:
        return head(name_metric(self.metric))

    def show(self, value: float) -> str:
        return show_metric(value, self.unit)

    def show_change(self, change: float) -> str:
        """Format a change of level: percentage points for a share, percent otherwise."""
        before = self.shift.before
        return show_points(change) if self.unit == "share" else show_change(change / before if before else None)

    @property
    def interval(self) -> str:
        """The 95% interval of the change; empty without one."""
        return show_range(self.show_change(self.shift.low), self.show_change(self.shift.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRows:
    """Rows of one history, each list in time order."""

    runs: list[Row]
    values: dict[str, list[Row]]
    """Rows of history by metric, in the order of METRICS, without metrics that have none."""
    changes: list[Row]
    """Rows of `list_changes`, with a description in `words`."""
    shifts: list[LevelShift]
    baseline: str | None
    """Name of the baseline as given, and its run."""
    baseline_run: Row | None
    band: dict[str, Row]
    """Rows of `read_band` by metric."""
    obstacle: str | None
    """Reason why a named baseline is missing."""
    others: list[str]
    """Models and prompt sets of other runs with this name, which have their own histories."""

    @property
    def newest(self) -> Row:
        """The latest run."""
        return self.runs[-1]


def read_history(connection: Connection, name: str, baseline: str | None = None) -> HistoryRows:
    """Read a history by spec name, run id or config_id.

    `baseline` is a pinned name or a run id (default: the one named in the spec of the latest run, or else the one of
    its last gate). Raises SpecError for an unknown history or given baseline.
    """
    runs = read_rows(connection, "from find_history(?)", name)
    if not runs:
        raise SpecError(_say_unknown(connection, name))
    ensure_metrics(connection, [run["run_id"] for run in runs])
    found = read_rows(connection, "from history(?)", name)
    values = {metric: rows for metric in METRICS if (rows := [row for row in found if row["metric"] == metric])}
    changes = list_changes(connection, name)
    named, obstacle, base = baseline or _find_named(connection, runs), None, None
    if named is not None:
        try:
            base = resolve_baseline(connection, named)
        except SpecError as error:
            if baseline is not None:
                raise
            obstacle = str(error)
    if base:
        ensure_repeats(connection, base)
    band = read_band(connection, base) if base else []
    return HistoryRows(
        runs=runs,
        values=values,
        changes=[_describe_change(connection, row) for row in changes],
        shifts=find_level_shifts(values),
        baseline=named if base else None,
        baseline_run=read_rows(connection, "select * from runs where run_id = ?", base)[0] if base else None,
        band={row["metric"]: row for row in band},
        obstacle=obstacle,
        others=_list_others(connection, runs[-1]),
    )


CONDITIONS = (
    "assayline", "device", "driver", "machine", "model", "prompts", "served files", "settings", "torch", "vLLM",
)  # fmt: skip
_CONDITIONS = """
    select
        found.run_id,
        found.position,
        found.started_at,
        runs.spec_hash,
        runs.model_id as model,
        served_root as "served files",
        prompts_digest as prompts,
        runs.config_id as settings,
        vllm_version as "vLLM",
        torch_version as torch,
        driver_version as driver,
        device_name as device,
        runs.machine,
        runs.assayline_version as assayline
    from find_history(?) as found
    join runs using (run_id)
    left join run_conditions using (run_id)
    order by position
"""


def list_changes(connection: Connection, name: str) -> list[Row]:
    """List the conditions of a history's runs that differ from those of the last run in which they are known.

    Rows have run_id, position, started_at, condition, before, after and run_id_before.
    """
    last: dict[str, Row] = {}
    found = []
    for run in read_rows(connection, _CONDITIONS, name):
        for condition in CONDITIONS:
            if run[condition] is None:
                continue
            old = last.get(condition, run)
            last[condition] = run
            # config_id changes with the model's content, too
            is_model = condition == "settings" and old["spec_hash"] == run["spec_hash"] and old["model"] != run["model"]
            if old[condition] != run[condition] and not is_model:
                kept = {key: run[key] for key in ("run_id", "position", "started_at")}
                values = {"before": old[condition], "after": run[condition], "run_id_before": old["run_id"]}
                found.append({**kept, "condition": condition, **values})
    return found


def list_counted(rows: Sequence[Row]) -> list[Row]:
    """Return the values that count for levels."""
    return [row for row in rows if row["is_counted"]]


def find_level_shifts(values: dict[str, list[Row]]) -> list[LevelShift]:
    """Return the shifts of every metric, earliest first, with a joint false-alarm rate of FALSE_ALARMS.

    None if the nights depend on each other.
    """
    counted = {metric: list_counted(rows) for metric, rows in values.items()}
    judged = {metric: rows for metric, rows in counted.items() if len(rows) >= FEWEST_NIGHTS}
    if not is_tellable([[row["value"] for row in rows] for rows in judged.values()]):
        return []
    found = [
        LevelShift(
            metric=metric,
            unit=rows[-1].get("unit", ""),
            shift=shift,
            run=rows[shift.index],
            until=rows[shift.until] if shift.until < len(rows) else None,
            is_worse=(shift.change > 0) != rows[0]["higher_is_better"],
        )
        for metric, rows in judged.items()
        for shift in find_shifts([row["value"] for row in rows], FALSE_ALARMS / len(judged))
    ]
    return sorted(found, key=lambda one: one.run["position"])


def _find_named(connection: Connection, runs: Sequence[Row]) -> str | None:
    """Return the baseline in the spec of the latest run, or the one that a gate used last."""
    (row,) = read_rows(connection, "select spec_json from runs where run_id = ?", runs[-1]["run_id"])
    named = (json.loads(row["spec_json"]).get("gate") or {}).get("baseline")
    return named or next((run["baseline_run_id"] for run in reversed(runs) if run["baseline_run_id"]), None)


def _describe_change(connection: Connection, row: Row) -> Row:
    """Add a description: the changed fields for settings, the first characters for digests."""
    if row["condition"] == "settings":
        before, after = (
            read_rows(connection, "select spec_json from runs where run_id = ?", run_id)[0]["spec_json"]
            for run_id in (row["run_id_before"], row["run_id"])
        )
        return {**row, "words": "; ".join(list_setting_changes(before, after)) or "the configuration changed"}
    return {**row, "words": f"{_shorten(row['before'])} → {_shorten(row['after'])}"}


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_CHARS else f"{text[: LONGEST_CHARS - 1]}…"


def _list_others(connection: Connection, run: Row) -> list[str]:
    rows = read_rows(
        connection,
        "select model, prompt_set, count(*) as runs from runs where benchmark_id is null and purpose <> 'suite' "
        "and state <> 'running' and name = ? and (model, prompt_set) <> (?, ?) group by all order by all",
        run["name"],
        run["model"],
        run["prompt_set"],
    )
    return [f"{row['model']} on {row['prompt_set']}" for row in rows]


def _say_unknown(connection: Connection, name: str) -> str:
    rows = read_rows(
        connection,
        "select distinct name from runs where benchmark_id is null and purpose <> 'suite' and state <> 'running' "
        "order by name",
    )
    names = [row["name"] for row in rows]
    near = nearest(name, names) if names else "no run has finished yet"
    return (
        f"There is no history {name!r} in the database: {as_sentence(near)} hint: pass the name of a spec, or the id "
        "of a run outside benchmarks and suites."
    )

"""Runs that are numbers of a file alone: without scores or times by request, only repeats tell how much they vary."""

import json

from assayline.comparison.queries import Side, choose_repeats, compare_speed, read_metric
from assayline.spec.criteria import GateSpec
from assayline.stats.worse import Comparison
from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import ensure_metrics


def is_stated(*specs_json: str) -> bool:
    """Return whether one of the runs with these stored specs is of totals, so that no prompts pair."""
    return any("totals" in json.loads(spec).get("imported", {}) for spec in specs_json)


def is_imported(*specs_json: str) -> bool:
    """Return whether one of the runs with these stored specs is a file's, so that nothing can measure it again."""
    return any("imported" in json.loads(spec) for spec in specs_json)


def limit_stated(connection: Connection, new: Side, old: Side, limits: GateSpec) -> dict[str, float]:
    """Return the limit on accuracy as a share of the baseline's, by metric; empty for runs with prompts."""
    accuracy = read_metric(connection, old.run_id) if is_stated(new.spec_json, old.spec_json) else None
    return {"accuracy": limits.max_accuracy_drop / accuracy} if accuracy else {}


def compare_stated(
    connection: Connection, candidate: str, baseline: str
) -> tuple[list[Row], dict[str, Comparison], str]:
    """Return the numbers that both runs state, comparisons with enough repeats, and a conclusion."""
    ensure_metrics(connection, [candidate, baseline])
    repeats = choose_repeats(connection, candidate, baseline)
    found = compare_speed(connection, *repeats, {}, is_apart=True) if all(repeats) else {}
    judged = {metric: one for metric, one in found.items() if one.name_change() != "too_few"}
    new, old = (max(1, len(side)) for side in repeats)
    words = (
        f"Repeats that are compared: {new} of this run and {old} of the baseline."
        if judged
        else f"Nothing can be concluded from {new} and {old}: without scores or times by request, only repeats show "
        "how much equal runs differ. hint: import three results or more of each configuration with `--machine NAME`, "
        "or results with their samples or requests."
    )
    return read_rows(connection, _STATED, candidate, baseline), judged, words


_STATED = """
    select metric, statistic, new.detail as detail, unit, new.value as candidate_value, old.value as baseline_value
    from metric_values as new
    join metric_values as old using (metric, statistic, unit)
    where new.run_id = ? and old.run_id = ? and new.detail is not distinct from old.detail
        and coalesce(new.value, old.value) is not null
    order by metric <> 'accuracy', metric, statistic, new.detail
"""

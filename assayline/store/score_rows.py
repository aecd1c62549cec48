"""The metric table's rows about scores: one per scorer, and where prompts were asked repeatedly, what repeats bring."""

from typing import Any

Row = dict[str, Any]

QUERIES = (
    "select * from accuracy where run_id = ? order by ordinal",
    "select * from pass_at_k where run_id = ? order by k",
    "select * from majority_vote where run_id = ?",
)
"""What `list_score_rows` wants to know, in this order."""

USUAL_K = (5, 10, 100)
"""Which pass@k are shown, beside the one of all samples; pass@1 is the mean."""


def list_score_rows(accuracies: list[Row], chances: list[Row], votes: list[Row]) -> list[Row]:
    """Rows of the metric table, but for the first scorer's accuracy, which run_summary has."""
    most = max((row["k"] for row in chances), default=0)
    rows = [_row(name_accuracy(row["scorer"]), "accuracy.mean", row, row["samples"]) for row in accuracies[1:]]
    for scorer in [row["scorer"] for row in accuracies]:
        rows += [
            _row(f"pass@{row['k']} ({scorer})", "pass_at_k.mean", row, row["prompts"])
            for row in chances
            if row["scorer"] == scorer and row["k"] in (*USUAL_K, most)
        ]
        rows += [
            _row(f"majority vote ({scorer})", "majority_vote.mean", row, row["prompts"])
            for row in votes
            if row["scorer"] == scorer
        ]
    return rows


def name_accuracy(scorer: str | None) -> str:
    """What the accuracy by a scorer is called."""
    return f"accuracy ({scorer})" if scorer else "accuracy"


def _row(metric: str, source: str, row: Row, n: int) -> Row:
    interval = {"low": row.get("mean_low"), "high": row.get("mean_high")}
    return {"metric": metric, "unit": "share", "source": source, "value": row["mean"], **interval, "n": n}

"""Leaderboards: the runs of each task, all of their pairs, and the ranks, which are stored for any reader."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations

import numpy as np

from assayline.comparison.judges import collect_verdicts
from assayline.comparison.queries import store_comparisons
from assayline.errors import SpecError
from assayline.stats import to_rows
from assayline.stats.families import adjust_family, rank_sides
from assayline.stats.pairs import describe_pairs, measure_pairs
from assayline.stats.strengths import rank_judged
from assayline.stats.worse import Change, Comparison
from assayline.store.database import Connection, Row, is_read_only, read_rows, transaction
from assayline.store.metrics import ensure_metrics
from assayline.store.runs import insert_rows
from assayline.words import as_sentence, nearest

SCORES = "scores"
"""`ranking.kind` of a leaderboard, whose value is a mean score."""
JUDGED = "judged pairs"
"""The same of runs that judges compared in pairs, whose value is a strength."""
UNRANKED: Row = dict.fromkeys(("best_rank", "worst_rank", "is_winner"))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs of a task, compared."""

    task: str
    candidate: str
    baseline: str
    found: Comparison
    """With Holm-adjusted p-values."""
    verdict: Change

    @property
    def sides(self) -> tuple[str, str]:
        return self.candidate, self.baseline


def rank_board(connection: Connection, names: Sequence[str] = ()) -> tuple[list[Row], list[Pair]]:
    """Rank the runs of these names (default: all), and store the ranks; return the cells and the compared pairs.

    Cells are rows of `find_board` with best_rank, worst_rank and is_winner, None if a score is not compared. Raises
    SpecError for a name that no finished run has.
    """
    ensure_metrics(connection, _list_candidates(connection, names))
    cells = read_rows(connection, "from find_board(?::varchar[])", list(names))
    _check_names(connection, names, cells)
    entries = [cell for cell in cells if cell["obstacle"] is None]
    pairs = compare_entries(connection, entries)
    place = {(entry["task"], entry["run_id"]): number for number, entry in enumerate(entries)}
    first, second = (np.array([place[pair.task, pair.sides[side]] for pair in pairs], int) for side in (0, 1))
    best, worst = rank_sides(first, second, [pair.verdict for pair in pairs], len(entries))
    met = {*first.tolist(), *second.tolist()}
    ranks = {
        key: {"best_rank": int(best[number]), "worst_rank": int(worst[number]), "is_winner": bool(worst[number] == 1)}
        for key, number in place.items()
        if number in met
    }
    cells = [{**cell, **ranks.get((cell["task"], cell["run_id"]), UNRANKED)} for cell in cells]
    shown = {"value": "mean", "low": "mean_low", "high": "mean_high"}
    columns = ("task", "model", "run_id", "scorer", "prompts", "best_rank", "worst_rank", "obstacle")
    rows = [
        {name: cell[source] for name, source in {**dict(zip(columns, columns, strict=True)), **shown}.items()}
        | {"is_winner": bool(cell["is_winner"])}
        for cell in cells
    ]
    store_ranking(connection, SCORES, names, rows)
    sides = [{"run_id": pair.candidate, "baseline_run_id": pair.baseline} for pair in pairs]
    described = [pair.found.as_row(pair.verdict) | one for pair, one in zip(pairs, sides, strict=True)]
    store_comparisons(connection, "leaderboard", described)
    return cells, pairs


def compare_entries(connection: Connection, entries: Sequence[Row]) -> list[Pair]:
    """Compare all pairs of runs of each task prompt by prompt, as one family of tests; highest scores first.

    `entries` have task, run_id and scorer. The limit of a ranking is 0: any difference counts.
    """
    listed = [(first, second) for first, second in combinations(entries, 2) if first["task"] == second["task"]]
    if not listed:
        return []
    asked = [{key: entry[key] for key in ("task", "run_id", "scorer")} for entry in entries]
    sums = connection.execute("from pair_board(?)", [asked]).fetchnumpy()
    number = {(first["task"], first["run_id"], second["run_id"]): place for place, (first, second) in enumerate(listed)}
    sides = zip(sums["first"].tolist(), sums["second"].tolist(), strict=True)
    found = [number[entries[one]["task"], entries[one]["run_id"], entries[other]["run_id"]] for one, other in sides]
    rows = to_rows(measure_pairs(np.array(found, int), sums, len(listed)))
    compared = adjust_family(
        [describe_pairs(row | {"scorer": first["scorer"]}) for row, (first, _) in zip(rows, listed, strict=True)]
    )
    pairs = [
        Pair(first["task"], first["run_id"], second["run_id"], one, one.name_change())
        for one, (first, second) in zip(compared, listed, strict=True)
    ]
    return sorted(pairs, key=lambda pair: (pair.task, -(pair.found.value or 0), -(pair.found.baseline_value or 0)))


_COMPARED = """
    select
        judged_run_id,
        other_run_id,
        any_value(cluster_key) as cluster,
        (avg(value) filter (first = 'a') + avg(value) filter (first = 'b')) / 2 as value,
        cast(coalesce(any_value(longer), 0) as integer) as longer
    from verdict_of_judge
    where status = 'judged' and other_run_id <> judged_run_id
    group by judged_run_id, other_run_id, answer
    having value is not null
"""
"""Pairs of answers judged in both orders: the mean of both, over judges and repeats, cancels a position bias."""


def rank_judged_runs(connection: Connection, rubric: str, judge_run_ids: Sequence[str]) -> list[Row]:
    """Rank the runs whose answers these judges compared in pairs, and store the ranks; strongest first.

    Rows have run_id, model (None if the database lacks the run) and the columns of `rank_judged` in
    `stats/strengths.py`.
    """
    collect_verdicts(connection, judge_run_ids)
    rows = read_rows(connection, _COMPARED)
    if not rows:
        return []
    sides = ("judged_run_id", "other_run_id")
    run_ids = sorted({row[side] for row in rows for side in sides})
    models = dict(connection.execute("select run_id, model from runs").fetchall())
    first, second = (np.searchsorted(run_ids, [row[side] for row in rows]) for side in sides)
    prompt = np.unique([row["cluster"] for row in rows], return_inverse=True)[1]
    value, longer = (np.array([row[key] for row in rows], float) for key in ("value", "longer"))
    ranked = to_rows(rank_judged(first, second, prompt, value, longer, len(run_ids)))
    found = [
        {"run_id": run_id, "model": models.get(run_id), **row} for run_id, row in zip(run_ids, ranked, strict=True)
    ]
    kept = ("run_id", "model", "low", "high", "prompts", "best_rank", "worst_rank", "is_winner")
    stored = [{"task": rubric, "value": row["strength"], **{key: row[key] for key in kept}} for row in found]
    store_ranking(connection, JUDGED, judge_run_ids, stored)
    return sorted(found, key=lambda row: (row["strength"] is None, -(row["strength"] or 0), -row["won_share"]))


def store_ranking(connection: Connection, kind: str, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Store the rows of a ranking in place of the last one of the same names. A reader stores nothing."""
    if is_read_only(connection):
        return
    ranked_at = datetime.now(UTC).replace(tzinfo=None)
    with transaction(connection):
        connection.execute("delete from rankings where kind = ? and names = ?::varchar[]", [kind, list(names)])
        key = {"kind": kind, "names": list(names), "ranked_at": ranked_at}
        insert_rows(connection, "rankings", [{**key, **row} for row in rows])


def _list_candidates(connection: Connection, names: Sequence[str]) -> list[str]:
    """List the runs that may have a cell."""
    query = """
        select run_id
        from runs
        where len($names::varchar[]) = 0 or list_has_any($names::varchar[], [run_id, benchmark_id, name, prompt_set])
    """
    return [run_id for (run_id,) in connection.execute(query, {"names": list(names)}).fetchall()]


def _check_names(connection: Connection, names: Sequence[str], cells: Sequence[Row]) -> None:
    rows = read_rows(connection, "select run_id, name, prompt_set, benchmark_id, state from runs")
    ended = [row for row in rows if row["state"] != "running"]
    known = {row[key] for row in ended for key in ("run_id", "benchmark_id")}
    known |= {row[key] for row in ended if row["benchmark_id"] is None for key in ("name", "prompt_set")}
    for name in names:
        if name in known:
            continue
        if any(row["run_id"] == name for row in rows):
            raise SpecError(
                f"Run {name} has not finished, and a leaderboard compares finished runs. hint: wait for it, or "
                f"resume it with `assayline evaluate --resume {name}`."
            )
        named = sorted({row[key] for row in ended for key in ("name", "prompt_set")})
        near = nearest(name, named) if named else "no run has finished yet"
        raise SpecError(
            f"The database has no run, spec or prompt set {name!r}: {as_sentence(near)} hint: pass run ids, "
            "spec names, prompt sets or benchmark ids, or nothing for all runs."
        )
    if not cells:
        raise SpecError(
            "A leaderboard has no runs yet: none outside a benchmark has finished, except for judges. hint: "
            "run `assayline evaluate SPEC` first."
        )

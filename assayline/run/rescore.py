"""Score a finished run's stored answers again, also by other scorers, without a device.

Added scorers become part of the run: its folder keeps the scorers, and the database their scores, in one transaction.
A rebuild restores them, and comparisons and reports treat them like the scorers of the spec.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from assayline.errors import SpecError, StoreError
from assayline.run.functions import pick_functions, score_samples
from assayline.settings import Settings
from assayline.spec.criteria import Loglikelihood, Scorer, name_scorers
from assayline.spec.judges import JudgeScorer
from assayline.store.database import Connection, read_rows, transaction
from assayline.store.locks import holding
from assayline.store.manifest import (
    ENDED_WELL,
    Manifest,
    keep_added,
    merge_scorers,
    read_manifest,
    read_run_scorers,
    read_spec_json,
)
from assayline.store.measure import measure_runs
from assayline.store.score_files import FunctionScores, read_function_scores, read_harness_scores, write_function_scores
from assayline.store.scoring import check_scorers, list_stale, read_samples, score_run
from assayline.store.thread import DatabaseThread

_WRONG = """
    select source_row, repeat_index, value, left(target, 2000) as target, left(answer, 2000) as answer, explanation
    from (select * from scores where run_id = ? and scorer = ? and value < 1) as wrong
    inner join (select * from stg_samples where run_id = ?) as samples
        using (run_id, prompt_id, occurrence, repeat_index)
    order by status <> 'ok', value, source_row, repeat_index
    limit ?
"""


@dataclass(slots=True)
class Rescored:
    """Result of scoring a run again."""

    run: Manifest
    accuracies: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the view `accuracy` for the requested scorers."""
    wrong: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The worst samples by scorer, wrong answers before errors; their texts are cut."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the user on failures of scorers."""


class _NotKept(Exception):
    """Ends a transaction whose results are not kept."""


def rescore_run(
    run_dir: Path,
    settings: Settings,
    scorers: Sequence[Scorer],
    keep: bool = True,
    force: bool = False,
    most_examples: int = 0,
    scores: Mapping[str, FunctionScores] = MappingProxyType({}),
    is_added: bool = True,
) -> Rescored:
    """Score a run by these scorers, or by all its own if none are given. Without `keep`, nothing is stored.

    Its metrics are forgotten with its old scores, and computed when they are read next, or by ensure_metrics.

    `scores` has the judges' scores, by scorer. With `is_added`, the scorers become part of the run.
    Raises SpecError for a scorer that does not apply to this run and, unless `force`, for a run that is not completed;
    StoreError for a run that is in use or not in the database.
    """
    run, spec = read_manifest(run_dir), json.loads(read_spec_json(run_dir))
    _check_state(run, force)
    _check_kinds(spec, scorers)
    check_scorers(scorers)
    with holding(run_dir, "score it after that process exits."):
        everything = merge_scorers(read_run_scorers(run_dir, spec), scorers)
        asked = [scorer.title for scorer in scorers or everything]
        database = DatabaseThread(settings)
        notes: list[str] = []
        if functions := [one for one in pick_functions(everything) if one.title in asked]:
            samples = database.run(lambda connection: read_samples(connection, run.run_id))
            found, notes = score_samples(functions, samples)
            scores = {**scores, **found}
        given = {**read_function_scores(run_dir), **scores}
        added = scorers if is_added else ()

        def score(connection: Connection) -> Rescored:
            _check_loaded(connection, run.run_id)
            rescored = Rescored(run, notes=notes)
            with suppress(_NotKept), transaction(connection):
                judged = read_harness_scores(run_dir)
                counts = score_run(connection, run.run_id, everything, asked, judged, given)
                checked = [one.title for one in added if not isinstance(one, JudgeScorer)]  # whose verdicts may be bad
                _check_counts(run.run_id, counts, checked)
                rescored.accuracies, rescored.wrong = _read_results(connection, run.run_id, asked, most_examples)
                if not keep:
                    raise _NotKept
                if given:
                    write_function_scores(run_dir, given)
                if added:
                    keep_added(run_dir, added)
            return rescored

        return database.run(score)


def list_stale_runs(settings: Settings) -> list[str]:
    """List runs with scores of a scorer whose definition changed, oldest first."""
    return DatabaseThread(settings).run(list_stale)


def _check_state(run: Manifest, force: bool) -> None:
    if run.state not in ENDED_WELL and not force:
        state = "has not finished" if run.state == "running" else f"is {run.state}, not completed"
        raise SpecError(
            f"Run {run.run_id} {state}, so scores would cover only some of its prompts. hint: resume it with "
            f"`assayline evaluate --resume {run.run_id}`, or pass --force to score the stored answers."
        )


def _check_kinds(spec: dict[str, Any], scorers: Sequence[Scorer]) -> None:
    try:
        name_scorers(scorers)
    except ValueError as error:
        raise SpecError(f"--scorer: {error}.") from None
    has_options = any(scorer["kind"] == "loglikelihood" for scorer in spec.get("scorers") or [])
    for scorer in scorers:
        if isinstance(scorer, Loglikelihood) and not has_options:
            raise SpecError(
                "The run generated text and has no likelihoods of options. hint: run a spec with the scorer "
                "loglikelihood and prompts.columns.options."
            )
        if has_options and not isinstance(scorer, Loglikelihood):
            raise SpecError(
                f"The run requested likelihoods of options, and has no generated text for {scorer.title}. hint: score "
                "it by loglikelihood, with another `normalize` and another name."
            )


def _check_loaded(connection: Connection, run_id: str) -> None:
    if not connection.execute("select 1 from runs where run_id = ?", [run_id]).fetchall():
        raise StoreError(f"Run {run_id} is not in the database. hint: load it with `assayline db rebuild {run_id}`.")


def _read_results(
    connection: Connection, run_id: str, asked: Sequence[str], most: int
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return the rows of accuracy and examples of wrong answers, of these scorers."""
    measure_runs(connection, run_id)
    rows = read_rows(connection, "select * from accuracy where run_id = ? order by ordinal", run_id)
    wrong = {label: read_rows(connection, _WRONG, run_id, label, run_id, most) for label in asked}
    return [row for row in rows if row["scorer"] in asked], wrong


def _check_counts(run_id: str, counts: dict[str, int], added: Sequence[str]) -> None:
    if empty := [label for label in added if not counts[label]]:
        raise SpecError(
            f"{', '.join(empty)} needs a target, and no answered prompt of run {run_id} has one. hint: set "
            "prompts.columns.target to the column with the expected answers and run the spec again, or use json, a "
            "scorer without targets."
        )

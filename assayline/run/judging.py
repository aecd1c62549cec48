"""Judges of a run: the specs of their runs, and scores from their verdicts.

A judge is a run whose prompts are the answers of the judged run, so it is resumed, measured and priced like any other.
The flow completes these runs. This module plans them and reads their verdicts.
"""

import copy
import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any

from assayline.comparison.judges import audit_judges
from assayline.digests import digest_json
from assayline.errors import SpecError
from assayline.model import identify_spec_model
from assayline.prompts.template import list_variables
from assayline.run.begin import RunPlan
from assayline.run.resume import is_complete
from assayline.settings import Settings
from assayline.spec.checks import check_arguments
from assayline.spec.criteria import Scorer
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.spec.judges import JudgeScorer, VerdictScorer
from assayline.spec.prompts import AnswersSource
from assayline.store.answers import ANSWER_COLUMNS, count_answers
from assayline.store.database import Row, read_rows
from assayline.store.locks import is_worked_on
from assayline.store.manifest import (
    AUTO,
    NEVER,
    Manifest,
    find_run,
    list_manifests,
    read_manifest,
    read_run_scorers,
    read_spec_json,
)
from assayline.store.score_files import FunctionScores, HarnessScore, read_function_scores
from assayline.store.scoring import check_scorers
from assayline.store.thread import DatabaseThread
from assayline.words import nearest

RETRY_TEMPERATURE = 0.5
"""Smallest temperature of a judge that is asked again: at 0 it would repeat its unreadable answer."""


def pick_judges(scorers: Sequence[Scorer] | None) -> list[JudgeScorer]:
    """Return the scorers that are judges."""
    return [scorer for scorer in scorers or [] if isinstance(scorer, JudgeScorer)]


def plan_judge(
    scorer: JudgeScorer, number: int, run_id: str, name: str, earlier: Sequence[str] = (), attempt: int = 0
) -> EvalSpec:
    """Return the spec of a judge's run over the answers of `run_id`, a run of the spec `name`.

    `number` is the judge's place in the panel. An attempt after the first asks only for answers with neither a
    verdict nor an error in the runs `earlier`. Raises SpecError for an invalid spec, and for one without a scorer that
    reads verdicts.
    """
    data = copy.deepcopy(scorer.spec[number])
    data["name"] = f"{name} judged by {scorer.title}" + (f" {number + 1}" if len(scorer.spec) > 1 else "")
    if scorer.model is not None:
        data["model"] = scorer.model
    source: dict[str, Any] = {"kind": "run", "run": run_id, "rubric": scorer.title}
    if attempt:
        source["not_judged_by"] = list(earlier)
        sampling = data.get("sampling") or {}
        temperature = max(float(sampling.get("temperature") or 0), RETRY_TEMPERATURE)
        data["sampling"] = {**sampling, "temperature": temperature, "seed": attempt}
    data["prompts"] = {**(data.get("prompts") or {}), "source": source}
    origin = f"the judge {scorer.spec[number].get('name', number + 1)} of {scorer.title}"
    spec = parse_spec(data, origin)
    scorers = spec.scorers or []
    if len([one for one in scorers if isinstance(one, VerdictScorer)]) != 1 or pick_judges(scorers):
        raise SpecError(
            f"{origin} needs one scorer of kind verdict, and none of kind judge. hint: write, for example, "
            "`scorers: [{kind: verdict, values: {correct: 1, incorrect: 0}}]`."
        )
    if scorer.label is None:
        return spec
    labelled = [
        one.model_copy(update={"label": scorer.label}) if isinstance(one, VerdictScorer) else one for one in scorers
    ]
    return spec.model_copy(update={"scorers": labelled})


def check_judges(plan: RunPlan) -> list[str]:
    """Check the judges of a run before its model's engine starts: their specs, templates, columns and models.

    Return notes for the user. Raises SpecError, PromptError or ModelError.
    """
    notes: list[str] = []
    metadata = plan.spec.prompts.columns.metadata
    for scorer in pick_judges(plan.spec.scorers):
        if scorer.label is not None and scorer.label not in metadata:
            raise SpecError(
                f"{scorer.title}: the label {scorer.label} is not a metadata column of the prompts; "
                f"{nearest(scorer.label, metadata)}. hint: add it to prompts.columns.metadata."
            )
        for number in range(len(scorer.spec)):
            planned = plan_judge(scorer, number, "RUN", plan.spec.name)
            known = {*ANSWER_COLUMNS, *metadata}
            if unknown := [one for one in list_variables(planned.prompts.template or "") if one not in known]:
                raise SpecError(
                    f"{scorer.title}: the judge's template uses {unknown[0]}, which answers do not have; "
                    f"{nearest(unknown[0], sorted(known))}. hint: columns of the judged prompts are available if "
                    "prompts.columns.metadata of the judged spec lists them."
                )
            check_arguments(planned)
            check_scorers(planned.scorers or [])
            if identify_spec_model(planned).model_id == plan.model.model_id:
                notes.append(f"{scorer.title}: the judge is the judged model itself, which may prefer its own answers.")
    return notes


def find_unreported(plan: RunPlan, settings: Settings) -> str | None:
    """Return the newest run of this spec, model and inputs if it only lacks scores of judges or its report; else None.

    If the plan's purpose names a run to resume, only that run is considered.
    """
    resume = plan.purpose.resume
    if resume == NEVER:
        return None
    runs_dir = settings.data_dir / "runs"
    if resume != AUTO:
        newest: Manifest | None = read_manifest(find_run(runs_dir, resume))
    else:
        asked = plan.fresh.name, plan.fresh.spec_hash
        runs = (run for run in list_manifests(runs_dir) if plan.purpose.owns(run))
        newest = next((run for run in runs if (run.name, run.spec_hash) == asked), None)
    if newest is None or not is_complete(run_dir := settings.run_dir(newest.run_id), newest) or is_worked_on(run_dir):
        return None
    is_retried = plan.purpose.kind == "night" and resume == newest.run_id  # its state is missing in Prefect
    if not newest.lacks_report and not _lacks_judges(settings, newest.run_id) and not is_retried:
        return None
    same = ("model_id", "tokenizer_id", "inputs", "is_deployed")
    if resume == AUTO and any(getattr(newest, name) != getattr(plan.fresh, name) for name in same):
        return None
    return newest.run_id


def list_judges(settings: Settings, run_id: str) -> list[JudgeScorer]:
    """Return the judges of a run."""
    run_dir = settings.run_dir(run_id)
    return pick_judges(read_run_scorers(run_dir, json.loads(read_spec_json(run_dir))))


def _lacks_judges(settings: Settings, run_id: str) -> bool:
    scored = read_function_scores(settings.run_dir(run_id))
    return any(scorer.title not in scored for scorer in list_judges(settings, run_id))


def find_judge_run(plan: RunPlan, settings: Settings) -> Manifest | None:
    """Return the newest completed and reported run like a judge's, with the same model and files, if any."""

    def identify(run: Manifest) -> tuple[object, ...]:
        return run.spec_hash, run.model_id, run.inputs_digest

    runs = list_manifests(settings.data_dir / "runs")
    ended = (run for run in runs if run.state == "completed" and not run.lacks_report)
    return next((run for run in ended if identify(run) == identify(plan.fresh)), None)


def count_unjudged(settings: Settings, run_id: str, judge_run_ids: Sequence[str] = ()) -> int:
    """Return the number of answers of a run, without those with a verdict or an error in any of the judges' runs."""
    source = AnswersSource(kind="run", run=run_id, not_judged_by=list(judge_run_ids))
    return int(DatabaseThread(settings).run(lambda connection: count_answers(connection, source)))


def read_verdicts(settings: Settings, scorer: JudgeScorer, judge_run_ids: Sequence[str]) -> FunctionScores:
    """Return the scores that the verdicts of these runs give to the judged answers."""
    rows = DatabaseThread(settings).run(lambda connection: read_rows(connection, _VERDICTS, list(judge_run_ids)))
    key = itemgetter("judged_prompt_id", "judged_occurrence", "judged_repeat_index")
    scores = [_score_answer(scorer, list(verdicts)) for _, verdicts in groupby(rows, key)]
    return FunctionScores(define_judges(scorer, settings, judge_run_ids), scores)


_VERDICTS = """
    select judged_prompt_id, judged_occurrence, judged_repeat_index, verdict, value, reason
    from find_judgements($1::varchar[])
    where status = 'judged'
    order by
        judged_prompt_id, judged_occurrence, judged_repeat_index, list_position($1, judge_run_id), repeat_index, scorer
"""


def _score_answer(scorer: JudgeScorer, verdicts: list[Row]) -> HarnessScore:
    """Score an answer by the mean of its verdicts or the most frequent one; by the mean of several equally frequent.

    The reason is that of the first verdict among those nearest to the score.
    """
    votes = Counter(row["value"] for row in verdicts)
    fewest = max(votes.values()) if scorer.combine == "majority" else 0
    value = fmean(row["value"] for row in verdicts if votes[row["value"]] >= fewest)
    first = min(verdicts, key=lambda row: round(abs(row["value"] - value), 6))
    return HarnessScore(
        scorer=scorer.title,
        prompt_id=first["judged_prompt_id"],
        occurrence=first["judged_occurrence"],
        value=value,
        extracted=", ".join(sorted({row["verdict"] for row in verdicts})),
        explanation=first["reason"] or "",
        repeat_index=first["judged_repeat_index"],
    )


def define_judges(scorer: JudgeScorer, settings: Settings, judge_run_ids: Sequence[str]) -> str:
    """Return the digest of the judges' specs and models, and of the way their verdicts are combined."""
    runs: list[Manifest] = [read_manifest(settings.run_dir(run_id)) for run_id in judge_run_ids]
    models = sorted({run.model_id for run in runs if run.model_id})
    return digest_json({"judges": scorer.spec, "models": models, "combine": scorer.combine})


def check_trust(settings: Settings, scorer: JudgeScorer, judge_run_ids: Sequence[str]) -> str | None:
    """Return why a judge or panel is not trusted; None if it agrees with the labels as much as it must."""
    if scorer.min_kappa is None:
        return None
    audits = DatabaseThread(settings).run(lambda connection: audit_judges(connection, judge_run_ids))
    panels = [audit for audit in audits if len(audit["judges"]) > 1]
    row = min(panels or audits, key=lambda audit: -math.inf if audit["kappa"] is None else audit["kappa"])
    kappa = row["kappa"]
    if kappa is not None and kappa >= scorer.min_kappa:
        return None
    if kappa is not None:
        seen = f"Cohen's kappa with {row['labelled_requests']} labels in the column {scorer.label} is {kappa:.2f}"
    elif row["labelled_requests"]:
        seen = f"all {row['labelled_requests']} labels in the column {scorer.label} are equal, so kappa is undefined"
    else:
        seen = f"no verdict has a label in the column {scorer.label}"
    if row["unknown_labels"]:
        seen += f" ({row['unknown_labels']} labels are not among its verdicts)"
    return (
        f"Judge not trusted: {scorer.title}: {seen}, and min_kappa is {scorer.min_kappa:g}. The answers and their "
        "scores are stored. hint: read the disagreements in the report, then improve the rubric or choose another "
        "judge."
    )

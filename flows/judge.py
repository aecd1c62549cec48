"""judge: score the answers of a completed run by other models, each in a run of its own.

    assayline score RUN_ID --judge judge.yaml [--model MODEL]

`evaluate` does the same for the judges among a spec's scorers, once its own engine has closed. A judge's run is
resumed like any other, and a completed one is not repeated, so each answer is judged once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from prefect import flow, get_run_logger

from assayline.engines.parking import without_lot
from assayline.errors import JudgeNotTrustedError
from assayline.evaluation.judging import (
    check_trust,
    count_unjudged,
    find_judge_run,
    plan_judge,
    read_verdicts,
)
from assayline.evaluation.rescore import Rescored, rescore_run
from assayline.flows.live.logs import speak_in_sentences
from assayline.flows.live.reporting import not_trusted, try_report
from assayline.report.make import make_report
from assayline.runs.manifest import read_manifest
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.judges import JudgeScorer

Complete = Callable[[EvalSpec], dict[str, Any]]
"""Completes a run of a spec, or resumes it: the flow `evaluate`."""


@flow(name="judge", flow_run_name="judges of {run_id}", persist_result=False)
def judge(run_id: str, scorers: list[JudgeScorer]) -> dict[str, Any]:
    """Score a run's answers by judges, write its report, and return the number of scores by judge.

    Args:
        run_id: the judged run, which is complete.
        scorers: the judges, which become scorers of the run.
    """
    from assayline.flows.evaluate import evaluate

    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    try:
        rescored = judge_answers(settings, run_id, scorers, evaluate, are_new=True)
    except JudgeNotTrustedError as error:
        return not_trusted(error)
    finally:
        try_report("report", run_id, partial(make_report, settings, run_id))
    return {row["scorer"]: row["samples"] for one in rescored for row in one.accuracies}


def judge_answers(
    settings: Settings, run_id: str, judges: Sequence[JudgeScorer], complete: Complete, are_new: bool = False
) -> list[Rescored]:
    """Complete the runs of judges over a run's answers and store their scores. `are_new`: add them to the run.

    Raises JudgeNotTrustedError, with all scores stored, if a judge agrees with the labels less than it must.
    """
    log = get_run_logger()
    name = read_manifest(settings.run_dir(run_id)).name
    found, distrusted = [], []
    for scorer in judges:
        judge_run_ids = _complete_runs(settings, run_id, name, scorer, complete)
        scores = {scorer.title: read_verdicts(settings, scorer, judge_run_ids)}
        if missing := count_unjudged(settings, run_id) - len(scores[scorer.title].scores):
            log.warning(
                "%s: %d answers have no score: the judge's verdict cannot be read, or is an error. They are not "
                "counted as wrong.",
                scorer.title,
                missing,
            )
        found.append(rescore_run(settings.run_dir(run_id), settings, [scorer], scores=scores, is_added=are_new))
        log.info(
            "%s: %d answers judged in %s", scorer.title, len(scores[scorer.title].scores), ", ".join(judge_run_ids)
        )
        if doubt := check_trust(settings, scorer, judge_run_ids):
            distrusted.append(doubt)
    if distrusted:
        raise JudgeNotTrustedError(" ".join(distrusted))
    return found


def _complete_runs(settings: Settings, run_id: str, name: str, scorer: JudgeScorer, complete: Complete) -> list[str]:
    """Return the runs of all judges of a panel and of their retries, completed if they were not."""
    run_ids: list[str] = []
    for number in range(len(scorer.judges)):
        own: list[str] = []
        for attempt in range(scorer.retries + 1):
            if attempt and not count_unjudged(settings, run_id, own):
                break
            spec = plan_judge(scorer, number, run_id, name, own, attempt)
            with without_lot(needs_device=spec.engine.needs_device):
                own.append(find_judge_run(spec, settings) or str(complete(spec)["run_id"]))
        run_ids += own
    return run_ids

"""evaluate: run a spec from Python, without Prefect. The run, its folder and its database are those of the command."""

import logging
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from assayline.errors import SpecError, StoreError
from assayline.evaluation.begin import Evaluation, RunResult, begin_evaluation
from assayline.evaluation.drive import Listener, drive_worker
from assayline.evaluation.judging import pick_judges
from assayline.evaluation.resume import AUTO
from assayline.runs.manifest import PromptCounts
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import load_spec, parse_spec

LOG = logging.getLogger("assayline")


def evaluate(
    spec: EvalSpec | Mapping[str, Any] | str | Path, *, resume: str = AUTO, settings: Settings | None = None
) -> RunResult:
    """Evaluate a model on a prompt set and return the run's id and metrics.

    Args:
        spec: a spec, its fields, or the path of a YAML file.
        resume: `auto` resumes an unfinished run of the same spec, `never` starts a new run, a run id resumes that run.
        settings: settings of the machine (default: ASSAYLINE_* environment variables).

    Repeat the call to resume after an interruption. Raises the errors that have exit codes: SpecError, ModelError,
    PromptError, EngineError, StoreError or RunFailedError.
    """
    asked = _as_spec(spec)
    if asked.runner != "local":
        raise SpecError(f"runner: {asked.runner} needs `assayline evaluate`. hint: set runner: local")
    if pick_judges(asked.scorers):
        raise SpecError("The scorer judge needs `assayline evaluate`. hint: run the command, or remove the judges.")
    settings = settings or load_settings()
    evaluation = begin_evaluation(asked, settings, resume)
    try:
        result = evaluation.finish(_generate_all(evaluation))
    except BaseException as error:
        state = "failed" if isinstance(error, Exception) else "cancelled"
        try:
            evaluation.abandon(state, str(error) or type(error).__name__)
        except StoreError as trouble:
            error.add_note(str(trouble))
        raise
    for note in result.notes:
        LOG.warning(note)
    return result


def _generate_all(evaluation: Evaluation) -> PromptCounts:
    """Prepare and generate concurrently, and ingest results meanwhile. Any failure stops everything."""
    if evaluation.is_answered:
        return evaluation.prepare()
    workers = evaluation.dispatcher.workers
    listener = Listener(LOG.info, LOG.warning, LOG.debug)
    with ThreadPoolExecutor(1 + workers) as pool:
        prepared = pool.submit(evaluation.prepare)
        try:
            left: set[Future[Any]] = {prepared}
            left |= {pool.submit(drive_worker, evaluation, f"worker-{i}", listener) for i in range(workers)}
            while left:
                done, left = wait(left, evaluation.settings.load_interval_s, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                evaluation.try_load()
        except BaseException:
            evaluation.stop()
            raise
    return prepared.result()


def _as_spec(spec: EvalSpec | Mapping[str, Any] | str | Path) -> EvalSpec:
    if isinstance(spec, EvalSpec):
        return spec
    return load_spec(spec) if isinstance(spec, str | Path) else parse_spec(dict(spec))

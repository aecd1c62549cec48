"""A night: an evaluation, judged as one of many against a baseline, with its history and the leaderboard."""

import contextlib
from collections.abc import Sequence

from assayline.comparison.baselines import resolve_baseline
from assayline.engines.pool import EnginePool
from assayline.errors import StoreError
from assayline.run.driver import FrontEnd, evaluate
from assayline.run.evaluation import RunResult
from assayline.run.reread import reread
from assayline.run.stages import write_leaderboard
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.stats.worse import NIGHTS, find_level
from assayline.store.manifest import NEVER, Purpose
from assayline.store.thread import DatabaseThread


def night(
    spec: EvalSpec, front: FrontEnd, baseline: str | None = None, resume: str = NEVER, tags: Sequence[str] = ()
) -> RunResult:
    """Evaluate a spec, judge the run against a baseline, and write its report, its history and the leaderboard.

    If the gate limits probabilities, the engine reads answers of the baseline first.

    `baseline` is a pinned name or a run id (default: gate.baseline of the spec; without either, the run is not judged).
    Raises the errors of `evaluate`, and ComparisonError.
    """
    settings, against = front.settings, baseline or spec.gate.baseline
    with front.notifying(f"Night of {spec.name}"):
        _check_baseline(settings, against)
        purpose = Purpose(kind="night", resume=resume, baseline=against, tags=(*tags,))
        with EnginePool() if spec.gate.reread and spec.workers == 1 else contextlib.nullcontext() as engines:
            if against and (limit := spec.gate.reread):
                level = find_level(NIGHTS)
                reread(against, spec, front, prompts=limit.prompts, max_kl=limit.max_kl, level=level, engines=engines)
            result = evaluate(spec, front, purpose, engines)
    if against is None:
        front.log.warning(
            "Run not judged: no baseline. hint: pin one with `assayline baseline pin NAME %s`, and name it as "
            "`baseline` or in gate.baseline of the spec.",
            result.run_id,
        )
    if board := write_leaderboard(settings, front.log, spec.prompts.set_name):
        front.show_page("leaderboard", spec.prompts.set_name, board.document, board.document.headline[0])
    if result.gate and result.gate.verdict in ("fail", "suspect"):
        front.notify(f"Night of {spec.name}, run {result.run_id}: {result.headline}")
    return result


def _check_baseline(settings: Settings, baseline: str | None) -> None:
    """Raise SpecError for an unknown baseline. A database that another program holds is left for the verdict."""
    if baseline is not None:
        with contextlib.suppress(StoreError):
            DatabaseThread(settings).run(lambda connection: resolve_baseline(connection, baseline), wait_s=5)

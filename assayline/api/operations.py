"""The operations of the command line, with typed results: each plans what was asked for, and drives its runs.

All arguments but `settings` and `front` are those of the command and the flow of the same name, which call these
functions. `settings` are the machine's (default: ASSAYLINE_* environment variables), and `front` shows the work. Each
function raises the errors that have exit codes; a repeated call goes on after an interruption.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from assayline.benchmark.campaign import Quality
from assayline.benchmark.configurations import BenchmarkAsk, plan_benchmark
from assayline.comparison.gate import GateReport
from assayline.errors import SpecError
from assayline.report.make import check_report_run, find_baseline_run, open_database
from assayline.report.run.comparison import ComparisonRows, read_comparison
from assayline.run import bisect as bisections
from assayline.run import campaign, driver
from assayline.run import reread as rereads
from assayline.run.bisect import BisectionResult
from assayline.run.campaign import BenchmarkResult, SuiteResult
from assayline.run.evaluation import RunResult
from assayline.run.night import night as spend_night
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile, as_spec
from assayline.spec.judges import JudgeScorer
from assayline.spec.suite import SuiteSpec
from assayline.stats.bisect import CONFIDENCE
from assayline.store.database import Connection, read_rows
from assayline.store.manifest import AUTO, NEVER, Purpose, list_run_ids, match_run_id

AnySpec = EvalSpec | SpecFile | Mapping[str, Any] | str | Path
"""A spec, its fields, the path of a YAML file, or {file, overrides}."""


def evaluate(
    spec: AnySpec,
    resume: str = AUTO,
    *,
    tags: Sequence[str] = (),
    settings: Settings | None = None,
    front: driver.FrontEnd | None = None,
) -> RunResult:
    """Evaluate a model on a prompt set, judge the answers, write the report, and return the run's id and metrics.

    `resume`: `auto` resumes an unfinished run of the same spec, `never` starts a new run, a run id resumes that run.
    Raises SpecError, ModelError, PromptError, EngineError, StoreError, RunFailedError or JudgeNotTrustedError.
    """
    return driver.evaluate(as_spec(spec), _front(settings, front), Purpose(resume=resume, tags=(*tags,)))


def night(
    spec: AnySpec,
    baseline: str | None = None,
    resume: str = NEVER,
    *,
    tags: Sequence[str] = (),
    settings: Settings | None = None,
    front: driver.FrontEnd | None = None,
) -> RunResult:
    """Evaluate a spec, and judge the run, as one of many nights, against a baseline, with its history and leaderboard.

    `baseline`: a pinned name or a run id (default: gate.baseline of the spec; without either, the run is not judged).
    Raises the errors of `evaluate`, and ComparisonError.
    """
    return spend_night(as_spec(spec), _front(settings, front), baseline, resume, tags)


def benchmark(
    spec: AnySpec | SuiteSpec | None = None,
    *,
    repeats: int | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    resume: str = AUTO,
    profile: Literal["sweep", "slo"] | None = None,
    slo: str | None = None,
    points: int | None = None,
    arrival: Literal["constant", "poisson"] | None = None,
    seconds: float | None = None,
    requests: int | None = None,
    baseline: str | None = None,
    quality: Quality | None = None,
    settings: Settings | None = None,
    front: driver.FrontEnd | None = None,
) -> BenchmarkResult:
    """Run every configuration of a spec, or of a suite's evaluations, several times, interleaved, and compare them.

    Raises the errors of `evaluate`.
    """
    asked = {name: value for name, value in locals().items() if name not in ("settings", "front")}
    own = _front(settings, front)
    return campaign.run_benchmark(plan_benchmark(BenchmarkAsk(**asked), own.settings), own)


def suite(
    suite: SuiteSpec | Mapping[str, Any] | str | Path,
    resume: str = AUTO,
    *,
    is_nightly: bool = False,
    settings: Settings | None = None,
    front: driver.FrontEnd | None = None,
) -> SuiteResult:
    """Run the evaluations of a suite, and decide by all of them. Raises the errors of `evaluate`, and NoGoError."""
    return campaign.run_suite(suite, _front(settings, front), resume, is_nightly=is_nightly)


def gate(
    run_id: str,
    baseline: str | None = None,
    limits: Mapping[str, Any] | None = None,
    *,
    is_remeasured: bool = False,
    is_nightly: bool = False,
    settings: Settings | None = None,
    front: driver.FrontEnd | None = None,
) -> GateReport:
    """Judge a run by its limits against a baseline; the report has the verdict. Raises SpecError or ComparisonError."""
    own, how = _front(settings, front), {"is_remeasured": is_remeasured, "is_nightly": is_nightly}
    return campaign.gate(_find(run_id, own.settings), own, baseline, limits, **how)


def compare(run_id: str, baseline: str, *, settings: Settings | None = None) -> ComparisonRows:
    """Compare two runs: scores by prompt, changed answers, speed and cost. Raises SpecError."""
    settings = settings or load_settings()
    run_id = _find(run_id, settings)

    def read(connection: Connection) -> ComparisonRows:
        check_report_run(connection, run_id)
        other = find_baseline_run(connection, baseline, run_id)
        for one in read_rows(connection, _UNANSWERED, run_id, other):
            raise SpecError(
                f"Run {one['run_id']} is {one['state']} and has no answers. hint: resume it, or compare another run."
            )
        return read_comparison(connection, run_id, other)

    return open_database(settings).query(read)


_UNANSWERED = """
    select run_id, state
    from runs
    where run_id in ($1, $2) and purpose not in ('import', 'totals')
        and run_id not in (select run_id from completions where run_id in ($1, $2) and error_kind is null)
"""


def reread(
    reference: str,
    spec: AnySpec,
    *,
    prompts: int = rereads.PROMPTS,
    max_kl: float | None = None,
    resume: str = AUTO,
    settings: Settings | None = None,
    front: driver.FrontEnd | None = None,
) -> GateReport:
    """Let the engine of a spec read stored answers of a run, and judge whether it gives other probabilities.

    `reference`: a run id or a pinned name. `max_kl`: limit in nats per token (default: three times what the reference's
    engine differs from itself). `resume`: `never` repeats the readings by the reference's engine, too.
    Raises the errors of `evaluate`, and ComparisonError if the engines have different tokens or prompts.
    """
    own = _front(settings, front)
    known, engine = _find(reference, own.settings), as_spec(spec)
    return rereads.reread(known, engine, own, prompts=prompts, max_kl=max_kl, resume=resume)


def bisect(
    good: AnySpec,
    bad: AnySpec | None = None,
    *,
    over: Mapping[str, Sequence[Any]] | None = None,
    metric: str | None = None,
    confidence: float = CONFIDENCE,
    max_runs: int | None = None,
    resume: str = AUTO,
    settings: Settings | None = None,
    front: driver.FrontEnd | None = None,
) -> BisectionResult:
    """Find which of the fields in which two specs differ, or since which value of `over`, answers or speed changed.

    `over`: the values of a field in order, the good one first. `metric`: kl, accuracy or a metric of speed (default:
    chosen by a pilot). Raises the errors of `evaluate`, and ComparisonError.
    """
    asked: dict[str, Any] = {"over": over, "metric": metric, "confidence": confidence, "max_runs": max_runs}
    other = None if bad is None else as_spec(bad)
    return bisections.bisect(as_spec(good), other, _front(settings, front), resume, **asked)


def judge(run_id: str, scorers: Sequence[JudgeScorer], *, front: driver.FrontEnd) -> dict[str, int]:
    """Add judges to a run. Return the number of scores by judge."""
    return driver.judge(run_id, scorers, front)


def _front(settings: Settings | None, front: driver.FrontEnd | None) -> driver.FrontEnd:
    return front or driver.FrontEnd(settings or load_settings())


def _find(run_id: str, settings: Settings) -> str:
    return match_run_id(run_id, list_run_ids(settings.data_dir / "runs")) or run_id

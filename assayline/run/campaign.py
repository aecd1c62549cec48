"""Campaigns from start to end: benchmarks, suites, and gates that measure again. `do_runs` does the runs of each.

A run that fails is recorded with its reason. The others go on, and the conclusion names what is missing.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assayline.benchmark.campaign import (
    Campaign,
    Cell,
    alternate,
    campaign_dir,
    find_unfinished,
    is_done,
    list_left,
    make_cell,
    new_campaign,
    read_runs,
    write_campaign,
)
from assayline.benchmark.configurations import add_rates
from assayline.benchmark.decision import JudgedCell, NoGoError, check_repeats, decide
from assayline.benchmark.profile import ENDS, Probe, SweepProfile, bisect_rate, space_rates
from assayline.benchmark.result import Measured
from assayline.benchmark.suite import REJUDGE, as_suite, name_baseline, plan_suite
from assayline.clock import RunClock
from assayline.comparison.gate import GateReport, find_limits
from assayline.comparison.queries import read_metric, read_side
from assayline.engines.pool import EnginePool
from assayline.errors import AssaylineError, JudgeNotTrustedError, RunFailedError, SpecError
from assayline.report.make import Written, make_report, write_report
from assayline.report.search import read_achieved_rates, read_probes
from assayline.report.suite import compose_suite, describe_decision
from assayline.report.sweep import read_benchmark_rows
from assayline.run.driver import FrontEnd
from assayline.run.reread import Reference, check_same_prompts, reread
from assayline.run.resume import has_all_answers
from assayline.run.stages import do_runs, gate_run, report_run, say_page, try_report
from assayline.spec.criteria import GateSpec, RereadLimit
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_stored
from assayline.spec.suite import SuiteSpec
from assayline.stats.repeats import FEWEST_PAIRS
from assayline.stats.worse import NIGHTS
from assayline.store.database import Connection, Row
from assayline.store.locks import holding
from assayline.store.manifest import AUTO, Manifest, Purpose, new_run_id
from assayline.store.thread import DatabaseThread

RATES = "rates"
"""Label of the sweep points whose rates cannot be computed."""


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """The measurements of a benchmark."""

    benchmark_id: str
    headline: str
    measured: list[Measured]
    """The configurations; empty for a load sweep, and for several tasks."""
    frontier: list[Row]
    """Rows of the view frontier."""
    report: str | None
    """Path of the report page, if it was written."""


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The decision of a suite."""

    suite_id: str
    decision: str
    headline: str
    risk: str
    evaluations: list[dict[str, Any]]
    report: str


@contextmanager
def hold_campaign(campaign: Campaign, front: FrontEnd) -> Iterator[EnginePool]:
    """Hold the campaign for this process, and return the engines that its runs share."""
    folder = campaign_dir(front.settings, campaign.kind, campaign.campaign_id)
    what = f"{campaign.kind.capitalize()} {campaign.campaign_id}"
    with holding(folder, "wait for its end.", what), EnginePool() as engines:
        if campaign.order and read_runs(campaign, front.settings):
            front.log.info("%s is resumed; --fresh (resume: never) starts a new one.", what)
        yield engines


def do_campaign(campaign: Campaign, front: FrontEnd, engines: EnginePool) -> dict[str, str]:
    """Do the runs that are left, and return the reasons of failures by key.

    The campaign has the id of a run before that begins, and goes on with the runs that it has. A run whose speed is
    compared, and which was interrupted before its last answer, is replaced by a new one.
    """
    settings, most = front.settings, campaign.runs_per_engine
    left, known = list_left(campaign, settings), read_runs(campaign, settings)
    what = f"{campaign.kind.capitalize()} {campaign.campaign_id}"
    front.log.info("%s: %d of %d runs to do", what, len(left) + campaign.planned, campaign.total)
    write_campaign(campaign, settings)
    used: Counter[str] = Counter()

    def can_go_on(run: Manifest, cell: Cell) -> bool:
        """Return whether a killed run may go on: its speed is not compared, or it has all its answers."""
        is_killed = run.state == "running" and run.attempt == 1
        is_answered = is_killed and has_all_answers(settings.run_dir(run.run_id), run)
        return not cell.is_measured or run.state == "completed" or is_answered

    def complete(cell: Cell, name: str) -> None:
        if most and used[cell.key] == most:  # a further repeat is of another engine
            engines.clear()
            used.clear()
        used[cell.key] += 1
        begun = [run for run in known.get(cell.key, ()) if not is_done(run, cell) and can_go_on(run, cell)]
        purpose = Purpose(
            kind="reread" if cell.spec.is_reread else "suite" if campaign.kind == "suite" else "benchmark",
            campaign_id=campaign.campaign_id,
            run_id=new_run_id(cell.spec.name, RunClock.start()),
            begun=tuple(run.run_id for run in begun),
            is_measured=cell.is_measured,
            has_page=campaign.kind in ("benchmark", "bisection"),
        )
        before = campaign.runs.get(cell.key, [])

        def keep(*run_ids: str | None) -> None:
            others = [one for one in before if one not in (run_ids or purpose.begun)]
            campaign.runs[cell.key] = [*others, *filter(None, run_ids)]
            write_campaign(campaign, settings)

        keep(purpose.run_id)
        try:
            keep(front.complete(cell.spec, purpose, name, None if most == 0 else engines).run_id)
        except JudgeNotTrustedError:
            keep()  # a further attempt is a new run
            raise

    return do_runs(left, campaign.total - campaign.planned, front.log, complete)


def run_benchmark(campaign: Campaign, front: FrontEnd) -> BenchmarkResult:
    """Do the remaining runs of a benchmark, and return the measurements.

    Raises RunFailedError if a configuration fails, after measuring the others. By kl, raises SpecError for an engine
    that cannot read, and ComparisonError for other tokens, before the first run.
    """
    base = _find_base(campaign)
    for cell in campaign.cells if campaign.quality == "kl" else ():
        check_same_prompts(Reference(base.key, base.spec, None, None, []), cell.spec)
    with hold_campaign(campaign, front) as engines:
        failed = do_campaign(campaign, front, engines)
        while campaign.profile and not failed:
            try:
                profile = _choose_rates(campaign, campaign.profile, front)
            except RunFailedError as error:
                failed = {RATES: f"{RATES}: {error}"}
                break
            if profile is None:
                break
            campaign = add_rates(campaign, profile)
            front.log.info("Rates: %s", ", ".join(cell.label for cell in campaign.cells[ENDS:]))
            failed = do_campaign(campaign, front, engines)
        if campaign.quality == "kl":
            failed |= _read_answers(campaign, base, front, engines)
    result = _conclude(campaign, front)
    if failed:
        raise RunFailedError(
            f"Benchmark {campaign.campaign_id} has configurations that did not complete. {' '.join(failed.values())} "
            f"The others are measured. hint: retry with `assayline benchmark --resume {campaign.campaign_id}`."
        )
    write_campaign(dataclasses.replace(campaign, is_over=result.report is not None), front.settings)
    return result


def _find_base(campaign: Campaign) -> Cell:
    return next((cell for cell in campaign.cells if cell.variant == campaign.baseline), campaign.cells[0])


def _read_answers(campaign: Campaign, base: Cell, front: FrontEnd, engines: EnginePool) -> dict[str, str]:
    """Let the engines of configurations read answers of the baseline's newest run, and return reasons of failures.

    A reading is not repeated. Other prompts than the baseline's are a failure.
    """
    limit = base.spec.gate.reread or RereadLimit()
    done = list_done(campaign, base, front)

    def read(cell: Cell, _: str) -> None:
        campaign.page.pop(cell.variant, None)
        how: dict[str, Any] = {"prompts": limit.prompts, "max_kl": limit.max_kl, "engines": engines}
        try:
            campaign.readings[cell.variant] = reread(done[-1].run_id, cell.spec, front, **how).candidate
        except AssaylineError as error:
            campaign.page[cell.variant] = str(error)
            raise
        finally:
            write_campaign(campaign, front.settings)

    others = [cell for cell in campaign.cells if cell is not base and list_done(campaign, cell, front)] if done else []
    left = [cell for cell in others if cell.variant not in campaign.readings]
    front.log.info("Engines read answers of %s: %d of %d to do", base.variant, len(left), len(others))
    return do_runs(left, len(others), front.log, read)


def _choose_rates(campaign: Campaign, profile: SweepProfile, front: FrontEnd) -> SweepProfile | None:
    """Return the profile with the rates of a sweep, or with the next rate of a search; None if it has all.

    Raises RunFailedError if a sweep has no rates between its two ends.
    """
    if profile.rates_per_s and not profile.slo:
        return None

    def read(connection: Connection) -> tuple[list[float | None], list[Probe]]:
        config_ids = [cell.config_id for cell in campaign.cells[:ENDS]]
        ends = read_achieved_rates(connection, campaign.campaign_id, config_ids)
        return ends, read_probes(connection, campaign.campaign_id, profile.slo) if profile.slo else []

    (synchronous, throughput), probes = DatabaseThread(front.settings).run(read)
    if not profile.slo:
        return space_rates(profile, synchronous, throughput)
    rate = bisect_rate(synchronous, throughput, probes) if synchronous and throughput else None
    if rate is None or rate in profile.rates_per_s:
        return None
    return dataclasses.replace(profile, rates_per_s=[*profile.rates_per_s, rate])


def _conclude(campaign: Campaign, front: FrontEnd) -> BenchmarkResult:
    """Write and show the report, and read the measurements."""
    benchmark_id = campaign.campaign_id

    def make(baseline: None) -> Written:
        return make_report(front.settings, benchmark_id, kind="benchmark")

    written = try_report(front.log, "report", f"--benchmark {benchmark_id}", make)
    rows = DatabaseThread(front.settings).run(
        lambda connection: read_benchmark_rows(connection, benchmark_id, campaign)
    )
    headline, report = "", None
    if written is not None:
        headline, report = written.document.headline[0], str(written.html.absolute())
        front.show_page("benchmark", campaign.name, written.document, headline)
    return BenchmarkResult(benchmark_id, headline, rows.measured, rows.frontier, report)


def gate(
    run_id: str,
    front: FrontEnd,
    baseline: str | None = None,
    limits: Mapping[str, Any] | None = None,
    *,
    is_remeasured: bool = False,
    is_nightly: bool = False,
) -> GateReport:
    """Judge a run against its baseline, and write its report with the verdict.

    `limits` override the gate of the run's spec. `is_remeasured`: judge new runs of both specs instead, interleaved in
    one session, each as often as the limits on speed and cost need. `is_nightly`: judge it as one of many nights.
    Raises SpecError, ComparisonError, ModelError or RunFailedError.
    """
    settings, limits = front.settings, dict(limits or {})
    campaign = _measure_again(front, run_id, baseline, limits) if is_remeasured else None
    if campaign:
        baseline, run_id = (list_done(campaign, cell, front)[-1].run_id for cell in campaign.cells)
    nights = NIGHTS if is_nightly else 1
    report = gate_run(settings, front.log, run_id, baseline, limits, nights=nights)
    if campaign:
        written = _write_pages(campaign, {campaign.cells[-1].key: report.baseline}, front)
        write_campaign(dataclasses.replace(campaign, is_over=True), settings)
    else:
        written = report_run(settings, front.log, run_id, report.baseline)
    if written:
        front.show_page("gate", written.document.title, written.document, say_page(written.document, report.sentence))
    return report


def _write_pages(campaign: Campaign, against: Mapping[str, str | None], front: FrontEnd) -> Written | None:
    """Write the report of every run with its verdict, by the baselines of the cells; return the last one."""
    written = None
    for cell in campaign.cells:
        for run in list_done(campaign, cell, front):
            written = report_run(front.settings, front.log, run.run_id, against.get(cell.key))
    return written


def _measure_again(front: FrontEnd, run_id: str, baseline: str | None, limits: dict[str, Any]) -> Campaign:
    """Run the specs of a baseline and of a run again, in turn."""

    def read(connection: Connection) -> tuple[str, GateSpec, list[EvalSpec]]:
        against, found = find_limits(connection, run_id, baseline, limits)
        return against, found, [parse_stored(read_side(connection, one).spec_json) for one in (against, run_id)]

    front.settings.pass_on_token()
    against, found, specs = DatabaseThread(front.settings).run(read)
    repeats = FEWEST_PAIRS if found.max_slowdown or found.max_cost_increase else 1
    names = {against: "the baseline", run_id: "the candidate"}
    sides = [
        make_cell(spec, name, {}, one, label=name, repeats=repeats)
        for (one, name), spec in zip(names.items(), specs, strict=True)
    ]
    if sides[0].config_id == sides[1].config_id:
        raise SpecError(
            f"Run {run_id} and its baseline have the same configuration, so measuring them again compares nothing. "
            "hint: leave out --remeasure."
        )
    campaign = new_campaign("gate", specs[1].name, sides, alternate(sides, repeats))
    campaign = find_unfinished(campaign, front.settings) or campaign
    with hold_campaign(campaign, front) as engines:
        if failed := do_campaign(campaign, front, engines):
            why = " ".join(failed.values())
            raise RunFailedError(f"Run {run_id} cannot be measured again with its baseline. {why}")
    return campaign


def list_done(campaign: Campaign, cell: Cell, front: FrontEnd) -> list[Manifest]:
    """List the runs of a cell that are done, in the order in which they began."""
    return [run for run in read_runs(campaign, front.settings).get(cell.key, ()) if is_done(run, cell)]


def run_suite(
    given: SuiteSpec | Mapping[str, Any] | str | Path,
    front: FrontEnd,
    resume: str = AUTO,
    *,
    is_nightly: bool = False,
) -> SuiteResult:
    """Run the evaluations of a suite and return its decision.

    `resume` is auto, to go on with the newest suite of the same specs that was interrupted; never; or rejudge, to judge
    the runs of the newest complete suite again, by today's baselines and limits. `is_nightly`: one of many nights.
    Raises NoGoError, and RunFailedError if runs did not complete, after deciding by the others.
    """
    wanted = as_suite(given)
    with front.notifying(f"Suite {wanted.name}") if is_nightly else nullcontext():
        return _run_suite(wanted, front, resume, is_nightly)


def _run_suite(wanted: SuiteSpec, front: FrontEnd, resume: str, is_nightly: bool) -> SuiteResult:
    settings = front.settings
    settings.pass_on_token()
    campaign = plan_suite(wanted, settings, resume, is_nightly=is_nightly)
    by_key = {cell.key: cell for cell in campaign.cells}
    baselines = {cell.key: by_key[name_baseline(cell)] for cell in campaign.cells if name_baseline(cell) in by_key}
    cells = [cell for cell in campaign.cells if not cell.is_baseline]
    check_repeats(cells, is_nightly=is_nightly)
    with hold_campaign(campaign, front) as engines:
        failed = {} if resume == REJUDGE else do_campaign(campaign, front, engines)
        nights = NIGHTS if is_nightly else 1
        judged = [_judge(cell, baselines.get(cell.key), campaign, failed, front, nights) for cell in cells]
        against = {one.cell.key: one.report.baseline if one.report else one.cell.baseline for one in judged}
        _write_pages(campaign, against, front)
        decision = decide(judged, is_nightly=is_nightly)
        page = describe_decision(decision)
        campaign = dataclasses.replace(campaign, decision=decision.word, page=page, is_over=not failed)
        written = write_report(compose_suite(campaign), settings)
        if not failed:
            write_campaign(campaign, settings)
    front.show_page("suite", campaign.name, written.document, decision.headline)
    report = str(written.html.absolute())
    if failed:
        raise RunFailedError(
            f"Suite {campaign.campaign_id} is {decision.word}, and runs did not complete. {' '.join(failed.values())} "
            f"Report: {report}. hint: run the suite again to retry them."
        )
    evaluations = campaign.page["evaluations"]
    result = SuiteResult(campaign.campaign_id, decision.word, decision.headline, decision.risk, evaluations, report)
    if decision.verdict in ("fail", "suspect"):
        raise NoGoError(decision.headline, result, decision.verdict)
    return result


def _judge(
    cell: Cell, measured: Cell | None, campaign: Campaign, failed: dict[str, str], front: FrontEnd, nights: int
) -> JudgedCell:
    """Judge the newest run of a cell, against the newest of its baseline if that was `measured` again.

    A cell that cannot be judged has the reason instead of a report.
    """
    runs = list_done(campaign, cell, front)
    run_id = runs[-1].run_id if runs else None
    why = failed.get(cell.key) or (measured and failed.get(measured.key))
    if why or run_id is None:
        return JudgedCell(cell, run_id, None, why or "It has no run.")
    mean = DatabaseThread(front.settings).run(lambda connection: read_metric(connection, run_id))
    if cell.baseline is None:
        why = f"It has no baseline. hint: pin a run, such as `assayline baseline pin NAME {run_id}`, and set baseline."
        return JudgedCell(cell, run_id, None, why, mean)
    baseline = list_done(campaign, measured, front)[-1].run_id if measured else cell.baseline
    limits = cell.spec.gate.model_dump(mode="json")
    try:
        report = gate_run(front.settings, front.log, run_id, baseline, limits, front.flow_run_id, nights)
    except AssaylineError as error:
        why = f"{error} The run is {run_id}."
        if isinstance(error, SpecError):
            pin = f"`assayline baseline pin {cell.baseline} {run_id}`"
            why = f"{str(error).partition(' hint: ')[0]} hint: {pin} makes this run the baseline."
        return JudgedCell(cell, run_id, None, why, mean)
    return JudgedCell(cell, run_id, report, mean_score=mean)

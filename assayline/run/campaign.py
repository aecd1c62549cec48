"""Campaign: many runs, one after another, by `do_runs`: the repeats of a benchmark, or the evaluations of a suite.

A run that fails is recorded with its reason. The others go on, and the conclusion names what is missing.
"""

import dataclasses
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from assayline.benchmark.configurations import (
    can_share_engine,
    identify_config,
    list_left,
    order_runs,
    replace_profile,
)
from assayline.benchmark.decision import Decision, JudgedCell, NoGoError, check_repeats, decide
from assayline.benchmark.plan import BenchmarkPlan, Configuration, benchmark_dir, count_done, write_plan
from assayline.benchmark.profile import ENDS, Probe, SweepProfile, bisect_rate, space_rates
from assayline.benchmark.suite import (
    Cell,
    SuitePlan,
    begin_suite,
    count_runs,
    find_complete,
    find_undecided,
    list_cells,
    suite_dir,
    write_suite,
)
from assayline.clock import RunClock
from assayline.comparison.baselines import resolve_baseline
from assayline.comparison.gate import NIGHTS, find_limits
from assayline.comparison.queries import read_accuracy, read_side
from assayline.engines.pool import EnginePool
from assayline.errors import AssaylineError, RunFailedError, SpecError, StoreError
from assayline.evaluation.resume import AUTO, NEVER
from assayline.report.make import Written, make_benchmark_report, make_suite_report
from assayline.report.search import read_probes
from assayline.report.suite import describe_decision
from assayline.report.sweep import read_achieved_rates, read_benchmark_rows
from assayline.run.driver import FrontEnd
from assayline.run.stages import do_runs, gate_run, report_run, try_report
from assayline.runs.locks import RunLock, lock_run, name_holder
from assayline.runs.manifest import new_run_id
from assayline.settings import Settings
from assayline.spec.criteria import GateSpec
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_stored
from assayline.spec.suite import SuiteSpec
from assayline.stats.repeats import count_repeats_needed
from assayline.store.database import Connection
from assayline.store.thread import DatabaseThread

REJUDGE = "rejudge"
RATES = "rates"
"""Label of the sweep points whose rates cannot be computed."""


def run_benchmark(plan: BenchmarkPlan, configurations: list[Configuration], front: FrontEnd) -> dict[str, Any]:
    """Do the remaining runs of a benchmark, and return the measurements.

    Raises RunFailedError if a configuration fails, after measuring the others.
    """
    settings = front.settings
    lock = _lock("Benchmark", plan.benchmark_id, benchmark_dir(settings, plan.benchmark_id))
    try:
        if count_done(plan.benchmark_id, settings):
            front.log.info("Benchmark %s is resumed; --fresh (resume: never) starts a new one.", plan.benchmark_id)
        with EnginePool() as engines:
            failed = _do_benchmark(plan, configurations, front, engines)
            while plan.profile and not failed:
                try:
                    profile = _choose_rates(plan, plan.profile, front)
                except RunFailedError as error:
                    failed = {RATES: f"{RATES}: {error}"}
                    break
                if profile is None:
                    break
                plan, configurations = replace_profile(plan, profile)
                write_plan(plan, settings)
                front.log.info("Rates: %s", ", ".join(one.label for one in configurations[ENDS:]))
                failed = _do_benchmark(plan, configurations, front, engines)
    finally:
        lock.release()
    result = _conclude(plan, configurations, front)
    if failed:
        raise RunFailedError(
            f"Benchmark {plan.benchmark_id} has configurations that did not complete. {' '.join(failed.values())} "
            f"The others are measured. hint: retry with `assayline benchmark --resume {plan.benchmark_id}`."
        )
    return result


def _do_benchmark(
    plan: BenchmarkPlan, configurations: list[Configuration], front: FrontEnd, engines: EnginePool
) -> dict[str, str]:
    left = list_left(plan, configurations, front.settings)
    front.log.info("Benchmark %s: %d of %d runs to do", plan.benchmark_id, len(left) + plan.planned, plan.total)
    done: Counter[str] = Counter()
    can_share = plan.profile or plan.runs_per_engine > 1 or all(can_share_engine(one.spec) for one in configurations)
    shared = engines if can_share else None

    def complete(one: Configuration, name: str) -> None:
        if done[one.key] == plan.runs_per_engine and not plan.profile:  # a further repeat is of another engine
            engines.clear()
            done.clear()
        done[one.key] += 1
        how: dict[str, Any] = {"benchmark_id": plan.benchmark_id, "purpose": "benchmark", "engines": shared}
        front.complete(one.spec, name, resume=NEVER, **how)

    return do_runs(left, plan.total - plan.planned, front.log, complete)


def _choose_rates(plan: BenchmarkPlan, profile: SweepProfile, front: FrontEnd) -> SweepProfile | None:
    """Return the profile with the rates of a sweep, or with the next rate of a search; None if it has all.

    Raises RunFailedError if a sweep has no rates between its two ends.
    """
    if profile.rates_per_s and not profile.slo:
        return None

    def read(connection: Connection) -> tuple[list[float | None], list[Probe]]:
        ends = read_achieved_rates(connection, plan.benchmark_id, plan.config_ids[:ENDS])
        return ends, read_probes(connection, plan.benchmark_id, profile.slo) if profile.slo else []

    (synchronous, throughput), probes = DatabaseThread(front.settings).run(read)
    if not profile.slo:
        return space_rates(profile, synchronous, throughput)
    rate = bisect_rate(synchronous, throughput, probes) if synchronous and throughput else None
    if rate is None or rate in profile.rates_per_s:
        return None
    return dataclasses.replace(profile, rates_per_s=[*profile.rates_per_s, rate])


def _conclude(plan: BenchmarkPlan, configurations: list[Configuration], front: FrontEnd) -> dict[str, Any]:
    """Write and show the report, and read the measurements."""

    def make(baseline: None) -> Written:
        return make_benchmark_report(front.settings, plan.benchmark_id)

    found: dict[str, Any] = {"benchmark_id": plan.benchmark_id}
    report = try_report(front.log, "report", f"--benchmark {plan.benchmark_id}", make)
    rows = DatabaseThread(front.settings).run(
        lambda connection: read_benchmark_rows(connection, plan.benchmark_id, plan)
    )
    found |= {"measured": [dataclasses.asdict(one) for one in rows.measured], "frontier": rows.frontier}
    if report is None:
        return {**found, "headline": ""}
    headline = report.document.headline[0]
    front.show_page("benchmark", json.loads(plan.spec_json)["name"], report.document, headline)
    return {**found, "headline": headline, "report": str(report.html.absolute())}


def remeasure(front: FrontEnd, run_id: str, baseline: str | None, overrides: dict[str, Any]) -> tuple[str, str]:
    """Run the specs of a run and of its baseline again, interleaved in one session; return the last run of each.

    Each runs as often as the limits on speed and cost need. Raises SpecError, ModelError or RunFailedError.
    """

    def read(connection: Connection) -> tuple[GateSpec, list[EvalSpec]]:
        against, limits = find_limits(connection, run_id, baseline, overrides)
        return limits, [parse_stored(read_side(connection, one).spec_json) for one in (against, run_id)]

    front.settings.pass_on_token()
    limits, specs = DatabaseThread(front.settings).run(read)
    names = ("the baseline", "the candidate")
    sides = [Configuration(name, spec, identify_config(spec, {})) for name, spec in zip(names, specs, strict=True)]
    if sides[0].config_id == sides[1].config_id:
        raise SpecError(
            f"Run {run_id} and its baseline have the same configuration, so measuring them again compares nothing. "
            "hint: leave out --remeasure."
        )
    metrics = len(limits.max_slowdown) + len(limits.max_cost_increase)
    runs = list(order_runs(sides, (metrics and count_repeats_needed(metrics, 0.05)) or 1))
    session, last = new_run_id(f"gate {specs[1].name}", RunClock.start()), {}

    def complete(side: Configuration, name: str) -> None:
        result = front.complete(side.spec, name, resume=NEVER, benchmark_id=session, purpose="benchmark")
        last[side.label] = result.run_id

    if failed := do_runs(runs, len(runs), front.log, complete):
        raise RunFailedError(f"Run {run_id} cannot be measured again with its baseline. {' '.join(failed.values())}")
    return last[names[1]], last[names[0]]


def run_suite(wanted: SuiteSpec, front: FrontEnd, resume: str = AUTO, *, is_nightly: bool = False) -> dict[str, Any]:
    """Run the evaluations of a suite and return its decision.

    `resume` is auto, to go on with the newest suite of the same specs that was interrupted; never; or rejudge, to judge
    the runs of the newest complete suite again, by today's baselines and limits. `is_nightly`: one of many nights.
    Raises NoGoError, and RunFailedError if runs did not complete, after deciding by the others.
    """
    settings, cells = front.settings, list_cells(wanted)
    check_repeats(cells, is_nightly=is_nightly)
    undecided = find_undecided(cells, settings) if resume == AUTO else None
    plan = find_complete(cells, settings) if resume == REJUDGE else undecided or begin_suite(wanted, cells)
    lock = _lock("Suite", plan.suite_id, suite_dir(settings, plan.suite_id))
    try:
        with EnginePool() as engines:
            shared = engines if all(can_share_engine(cell.spec) for cell in cells) else None
            baselines = {} if is_nightly else _find_baselines(cells, settings)
            if resume == REJUDGE:
                baselines = {
                    key: one for key, one in baselines.items() if count_runs(plan, one, settings) >= one.repeats
                }
            failed = _do_cells(plan, cells, baselines, front, AUTO if undecided else NEVER, shared)
        nights = NIGHTS if is_nightly else 1
        judged = [_judge(cell, baselines.get(cell.key), plan, failed, front, nights) for cell in cells]
        decision = decide(judged, is_nightly=is_nightly)
        plan = dataclasses.replace(plan, decision=decision.word, page=describe_decision(decision))
        written = make_suite_report(settings, plan)
        if not failed:
            write_suite(plan, settings)
    finally:
        lock.release()
    front.show_page("suite", plan.name, written.document, decision.headline)
    if failed:
        raise RunFailedError(
            f"Suite {plan.suite_id} is {decision.word}, and runs did not complete. {' '.join(failed.values())} "
            f"Report: {written.html.absolute()}. hint: run the suite again to retry them."
        )
    result = _describe(plan, decision, written)
    if decision.verdict in ("fail", "suspect"):
        raise NoGoError(decision.headline, result, decision.verdict)
    return result


def _find_baselines(cells: list[Cell], settings: Settings) -> dict[str, Cell]:
    """Return what to run for the baselines of cells with limits on speed, by the key of the cell.

    A baseline of the cell's own configuration is left out, and so is one that cannot run here.
    """

    def read(connection: Connection, cell: Cell) -> EvalSpec:
        return parse_stored(read_side(connection, resolve_baseline(connection, str(cell.baseline))).spec_json)

    found: dict[str, Cell] = {}
    for cell in (cell for cell in cells if cell.measures):
        try:
            spec = DatabaseThread(settings).run(partial(read, cell=cell))
            if identify_config(spec, {}) != identify_config(cell.spec, {}):
                name = f"{cell.evaluation}, baseline"
                found[cell.key] = dataclasses.replace(cell, evaluation=name, model=spec.model_name, spec=spec)
        except AssaylineError:
            continue  # the gate names an unknown baseline, and one of another session
    return found


def _do_cells(
    plan: SuitePlan,
    cells: list[Cell],
    baselines: dict[str, Cell],
    front: FrontEnd,
    resume: str,
    engines: EnginePool | None,
) -> dict[str, str]:
    """Do the remaining runs, and store each in the plan. A new suite has new runs only.

    Runs of a cell and of its baseline alternate, and only those of this suite count as their repeats.
    """
    left: list[Cell] = []
    for cell in cells:
        sides = [baselines[cell.key], cell] if cell.key in baselines else [cell]
        for number in range(cell.repeats):
            in_turn = sides if number % 2 == 0 else sides[::-1]
            left += [side for side in in_turn if number >= len(plan.runs.get(side.key, []))]
    total = sum(cell.repeats * (1 + (cell.key in baselines)) for cell in cells)
    apart = {*baselines, *(baseline.key for baseline in baselines.values())}
    front.log.info("Suite %s: %d of %d runs to do", plan.suite_id, len(left), total)
    write_suite(plan, front.settings)

    def complete(cell: Cell, name: str) -> None:
        owner = {"suite_id": plan.suite_id, "benchmark_id": plan.suite_id if cell.key in apart else None}
        result = front.complete(cell.spec, name, resume=resume, engines=engines, purpose="suite", **owner)
        plan.runs.setdefault(cell.key, []).append(result.run_id)
        write_suite(plan, front.settings)

    return do_runs(left, total, front.log, complete)


def _judge(
    cell: Cell, measured: Cell | None, plan: SuitePlan, failed: dict[str, str], front: FrontEnd, nights: int
) -> JudgedCell:
    """Judge the newest run of a cell, against the newest of its baseline if that was `measured` again.

    A cell that cannot be judged has the reason instead of a report.
    """
    runs = plan.runs.get(cell.key, [])
    run_id = runs[-1] if runs else None
    why = failed.get(cell.key) or (measured and failed.get(measured.key))
    if why or run_id is None:
        return JudgedCell(cell, run_id, None, why or "It has no run.")
    mean = DatabaseThread(front.settings).run(lambda connection: read_accuracy(connection, run_id))
    if cell.baseline is None:
        why = f"It has no baseline. hint: pin a run, such as `assayline baseline pin NAME {run_id}`, and set baseline."
        return JudgedCell(cell, run_id, None, why, mean)
    baseline = plan.runs[measured.key][-1] if measured else cell.baseline
    limits = cell.spec.gate.model_dump(mode="json")
    try:
        report = gate_run(front.settings, front.log, run_id, baseline, limits, front.flow_run_id, nights)
    except AssaylineError as error:
        why = f"{error} The run is {run_id}."
        if isinstance(error, SpecError):
            pin = f"`assayline baseline pin {cell.baseline} {run_id}`"
            why = f"{str(error).partition(' hint: ')[0]} hint: {pin} makes this run the baseline."
        return JudgedCell(cell, run_id, None, why, mean)
    report_run(front.settings, front.log, run_id, baseline)
    return JudgedCell(cell, run_id, report, mean_score=mean)


def _describe(plan: SuitePlan, decision: Decision, written: Written) -> dict[str, Any]:
    return {
        "suite_id": plan.suite_id,
        "decision": decision.word,
        "headline": decision.headline,
        "risk": decision.risk,
        "evaluations": plan.page["evaluations"],
        "report": str(written.html.absolute()),
    }


def _lock(what: str, name: str, folder: Path) -> RunLock:
    if (lock := lock_run(folder)) is None:
        raise StoreError(f"{what} {name} is in use by {name_holder(folder)}. hint: wait for its end.")
    return lock

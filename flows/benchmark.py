"""benchmark: repeats and sweeps of one spec, for speeds that can be compared, and latency under load.

    assayline benchmark SPEC [--repeats 5] [--sweep engine.max_concurrency=16,32,64]... [--dry-run] [--FIELD VALUE ...]
    assayline benchmark SPEC --profile sweep [--points 8] [--arrival poisson] [--seconds 30]
    assayline benchmark --resume BENCHMARK_ID

Each repeat is a run of its own, by the flow `evaluate`; runs follow one another, so there is one engine at a time on a
device. Repeats have engines of their own, the points of a profile share one. A killed benchmark resumes where
it stopped.
"""

import contextlib
import json
from dataclasses import asdict
from typing import Any, Literal

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from rich.console import Console

from assayline.benchmark.configurations import add_rates, list_left, plan_benchmark, read_plan
from assayline.benchmark.plan import Configuration, Plan, benchmark_dir, write_plan
from assayline.benchmark.profile import ENDS, choose_profile, choose_repeats
from assayline.benchmark.result import Measured, read_measured
from assayline.engines.parking import park_engines
from assayline.errors import EngineError, RunFailedError, SpecError, StoreError
from assayline.evaluation.resume import NEVER
from assayline.flows.cli.tables import print_benchmark
from assayline.flows.cli.words import plain_console, print_table, print_text
from assayline.flows.evaluate import SpecParameter, as_spec, check_deployed_spec, evaluate
from assayline.flows.live.logs import speak_in_sentences
from assayline.flows.live.reporting import publish_page, try_report
from assayline.report.document import tabulate
from assayline.report.make import HTML_NAME, Written, make_benchmark_report
from assayline.report.sweep import POINTS, BenchmarkRows, label_points, read_achieved_rates, read_benchmark_rows
from assayline.runs.locks import lock_run, name_holder
from assayline.settings import Settings, load_settings
from assayline.store.thread import DatabaseThread

RATES = "rates"
"""Stands for the points of a sweep whose rates cannot be told."""


def do_all_runs(
    plan: Plan, configurations: list[Configuration], settings: Settings
) -> tuple[Plan, list[Configuration], dict[str, str]]:
    """Does what is left. Returns the plan and its configurations, complete now, and why which of them failed."""
    failed = _do_runs(plan, configurations, settings)
    if plan.planned and not failed:
        try:
            plan, configurations = _find_rates(plan, settings)
        except RunFailedError as error:
            return plan, configurations, {RATES: str(error)}
        failed = _do_runs(plan, configurations, settings)
    return plan, configurations, failed


def _do_runs(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, str]:
    """Does what is left of these. Returns why configurations did not complete, by label."""
    failed: dict[str, str] = {}
    log = get_run_logger()
    left = list_left(plan, configurations, settings)
    log.info("Benchmark %s: %d of %d runs to do", plan.benchmark_id, len(left) + plan.planned, plan.total)
    for number, configuration in enumerate(left, plan.total - plan.planned - len(left) + 1):
        if configuration.label in failed:
            continue
        log.info("Run %d of %d: %s", number, plan.total, configuration.label)
        try:
            named = evaluate.with_options(flow_run_name=f"{configuration.label} · {number} of {plan.total}")
            named(configuration.spec, NEVER, plan.benchmark_id)
        except (EngineError, RunFailedError) as error:  # that of a size that does not fit, say
            failed[configuration.label] = str(error)
            log.error("%s is left out from here on: %s", configuration.label, error)
    return failed


def _find_rates(plan: Plan, settings: Settings) -> tuple[Plan, list[Configuration]]:
    """The plan of a sweep whose ends are measured, with the rates between them, which it keeps from now on."""
    achieved = DatabaseThread(settings).run(
        lambda connection: read_achieved_rates(connection, plan.benchmark_id, plan.config_ids[:ENDS])
    )
    plan, configurations = add_rates(plan, achieved)
    write_plan(plan, settings)
    labels = ", ".join(configuration.label for configuration in configurations[ENDS:])
    get_run_logger().info("Rates between what the two ends achieved: %s", labels)
    return plan, configurations


POINT_HEADERS = (
    "load",
    "answered /s",
    "tokens /s",
    "first token p50",
    "first token p99",
    "end to end p50",
    "in flight",
    "note",
)


def conclude_benchmark(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, Any]:
    """Reads what was measured, and shows it. Returns it as the flow's result."""
    measured = _measure(plan, configurations, settings)

    def make(baseline: None) -> Written:
        return make_benchmark_report(settings, plan.benchmark_id)

    report = try_report("report", f"--benchmark {plan.benchmark_id}", make)
    if report:
        publish_page("benchmark", json.loads(plan.spec_json)["name"], report.document, report.document.headline[0])
    found = {"benchmark_id": plan.benchmark_id, "measured": [asdict(one) for one in measured]}
    return {**found, "report": str(report.html.absolute())} if report else found


def print_conclusion(benchmark_id: str, settings: Settings) -> None:
    """Tables at the end of a command."""
    plan, configurations = read_plan(benchmark_id, settings)
    console = plain_console()
    if plan.profile is None:
        print_benchmark(benchmark_id, _measure(plan, configurations, settings), console)
    else:
        rows = DatabaseThread(settings).run(lambda connection: read_benchmark_rows(connection, benchmark_id))
        print_points(rows, console)
    report = benchmark_dir(settings, benchmark_id) / HTML_NAME
    if report.exists():
        print_text(f"Report: {report}", console)


def print_points(rows: BenchmarkRows, console: Console) -> None:
    """The points of a sweep, in as many columns as a terminal has room for."""
    print_text(f"\nBenchmark {rows.benchmark_id}: latency under load", console)
    columns = [column for column in POINTS if column.header in POINT_HEADERS]
    print_table(tabulate("Points", columns, label_points(rows.points)), console)


def _measure(plan: Plan, configurations: list[Configuration], settings: Settings) -> list[Measured]:
    labels = {one.config_id: one.label for one in configurations}
    limits = {str(name): limit for name, limit in configurations[0].spec.gate.max_slowdown.items()}
    return DatabaseThread(settings).run(lambda connection: read_measured(connection, plan.benchmark_id, labels, limits))


def name_benchmark() -> str:
    """The run's name in the UI."""
    try:
        resume, spec = flow_run.parameters.get("resume"), flow_run.parameters.get("spec")
        return str(resume or f"benchmark {as_spec(spec).name}")
    except Exception:
        return "benchmark"  # the flow itself says what is wrong with its spec


@flow(name="benchmark", flow_run_name=name_benchmark, persist_result=False)
def benchmark(
    spec: SpecParameter | None = None,
    repeats: int | None = None,
    sweep: dict[str, list[Any]] | None = None,
    resume: str | None = None,
    profile: Literal["sweep"] | None = None,
    points: int | None = None,
    arrival: Literal["constant", "poisson"] | None = None,
    seconds: float | None = None,
    requests: int | None = None,
) -> dict[str, Any]:
    """Runs every configuration several times, in turn, and compares them with the first; or sweeps the load.

    Args:
        spec: the spec, the path of a YAML file with one, or {file, overrides} to set some of its fields.
        repeats: runs per configuration (default 5, which a comparison needs; 1 for a profile's points).
        sweep: values by dotted field: {"engine.max_concurrency": [16, 32]}.
        resume: id of a benchmark to resume; then without the others.
        profile: sweep measures latency from one request at a time to all at once.
        points: rates between the two ends of the sweep (default 8).
        arrival: how a rate's requests come (default: as in the spec's load, or constant).
        seconds: longest sending per point of the sweep.
        requests: most requests per point of the sweep.
    """
    settings = load_settings()
    settings.pass_on_token()
    if not settings.tracebacks:
        speak_in_sentences()
    if resume is not None:
        plan, configurations = read_plan(resume, settings)
    elif spec is not None:
        check_deployed_spec(spec)
        options = {"points": points, "arrival": arrival, "seconds": seconds, "requests": requests}
        chosen = choose_profile(profile, {name: value for name, value in options.items() if value is not None})
        asked = choose_repeats(repeats, chosen)
        plan, configurations = plan_benchmark(as_spec(spec), sweep or {}, asked, profile=chosen)
        write_plan(plan, settings)
    else:
        raise SpecError("A benchmark needs a spec, or the id of a benchmark to resume.")
    return run_plan(plan, configurations, settings)


def run_plan(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, Any]:
    """Does the runs that are left. Raises RunFailedError if a configuration does not complete, others measured."""
    folder = benchmark_dir(settings, plan.benchmark_id)
    lock = lock_run(folder)
    if lock is None:
        raise StoreError(f"Benchmark {plan.benchmark_id} is in use by {name_holder(folder)}. Wait for its end.")
    try:
        with park_engines() if plan.profile else contextlib.nullcontext():
            plan, configurations, failed = do_all_runs(plan, configurations, settings)
    finally:
        lock.release()
    result = conclude_benchmark(plan, configurations, settings)
    if failed:
        told = " ".join(f"{label}: {reason}" for label, reason in failed.items())
        raise RunFailedError(
            f"Benchmark {plan.benchmark_id} has configurations that did not complete. {told} The others are measured; "
            f"`assayline benchmark --resume {plan.benchmark_id}` tries again."
        )
    return result

"""benchmark: measure configurations of a spec over repeats, or latency under load.

    assayline benchmark SPEC [--repeats 5] [--sweep engine.max_concurrency=16,32,64]... [--dry-run] [--FIELD VALUE ...]
    assayline benchmark SPEC --profile sweep [--points 8] [--arrival poisson] [--seconds 30]
    assayline benchmark --resume BENCHMARK_ID
    assayline noise SPEC [--repeats 10] [--dry-run] [--FIELD VALUE ...]

Each repeat is a separate run of the flow `evaluate`. Runs are sequential, so a device has one engine at a time. Each
repeat opens its own engine; the points of a profile share one, and so do two consecutive runs of a noise measurement.
A killed benchmark resumes where it stopped. An interrupted pair is not completed: the remaining runs form new pairs,
so an engine may have a single run.
"""

import contextlib
import json
from dataclasses import asdict
from typing import Any, Literal

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from rich.console import Console

from assayline.benchmark.configurations import (
    LEAST_RUNS,
    NOISE_RUNS,
    add_rates,
    list_left,
    plan_benchmark,
    plan_noise,
    read_plan,
)
from assayline.benchmark.plan import Configuration, Plan, benchmark_dir, write_plan
from assayline.benchmark.profile import ENDS, choose_profile, choose_repeats
from assayline.benchmark.result import Measured, read_measured
from assayline.engines.parking import park_engines
from assayline.errors import AssaylineError, RunFailedError, SpecError, StoreError
from assayline.evaluation.resume import NEVER
from assayline.flows.cli.tables import print_benchmark, print_noise
from assayline.flows.cli.words import plain_console, print_table, print_text
from assayline.flows.evaluate import SpecParameter, as_spec, check_deployed_spec, evaluate
from assayline.flows.live.logs import speak_in_sentences
from assayline.flows.live.reporting import completed, publish_page
from assayline.report.document import tabulate
from assayline.report.make import HTML_NAME, Written, make_benchmark_report
from assayline.report.noise import read_noise
from assayline.report.sweep import POINTS, BenchmarkRows, label_points, read_achieved_rates, read_benchmark_rows
from assayline.run.stages import try_report
from assayline.runs.locks import lock_run, name_holder
from assayline.settings import Settings, load_settings
from assayline.store.thread import DatabaseThread

RATES = "rates"
"""Label of the sweep points whose rates cannot be computed."""


def do_all_runs(
    plan: Plan, configurations: list[Configuration], settings: Settings
) -> tuple[Plan, list[Configuration], dict[str, str]]:
    """Do the remaining runs. Return the completed plan, its configurations, and failure reasons by label."""
    failed = _do_runs(plan, configurations, settings)
    if plan.planned and not failed:
        try:
            plan, configurations = _find_rates(plan, settings)
        except RunFailedError as error:
            return plan, configurations, {RATES: str(error)}
        failed = _do_runs(plan, configurations, settings)
    return plan, configurations, failed


def _do_runs(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, str]:
    """Do the remaining runs of these configurations. Return failure reasons by label."""
    failed: dict[str, str] = {}
    log = get_run_logger()
    left = list_left(plan, configurations, settings)
    log.info("Benchmark %s: %d of %d runs to do", plan.benchmark_id, len(left) + plan.planned, plan.total)
    with contextlib.ExitStack() as shared:
        for place, configuration in enumerate(left):
            if configuration.label in failed:
                continue
            if plan.runs_per_engine > 1 and place % plan.runs_per_engine == 0:
                shared.close()
                shared.enter_context(park_engines())
            number = plan.total - plan.planned - len(left) + 1 + place
            log.info("Run %d of %d: %s", number, plan.total, configuration.label)
            try:
                named = evaluate.with_options(flow_run_name=f"{configuration.label} · {number} of {plan.total}")
                named(configuration.spec, NEVER, plan.benchmark_id, "benchmark")
            except AssaylineError as error:  # for example a configuration that does not fit into memory
                failed[configuration.label] = str(error)
                log.error("Configuration %s failed; skipping its remaining runs: %s", configuration.label, error)
    return failed


def _find_rates(plan: Plan, settings: Settings) -> tuple[Plan, list[Configuration]]:
    """Add the rates between the two measured ends to a sweep's plan, and write the plan."""
    achieved = DatabaseThread(settings).run(
        lambda connection: read_achieved_rates(connection, plan.benchmark_id, plan.config_ids[:ENDS])
    )
    plan, configurations = add_rates(plan, achieved)
    write_plan(plan, settings)
    labels = ", ".join(configuration.label for configuration in configurations[ENDS:])
    get_run_logger().info("Rates between the two achieved rates: %s", labels)
    return plan, configurations


POINT_HEADERS = (
    "load",
    "answered (req/s)",
    "output tokens/s",
    "TTFT p50",
    "TTFT p99",
    "E2E p50",
    "in flight",
    "note",
)


def conclude_benchmark(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, Any]:
    """Read the measurements, write and publish the report, and return the flow's state, which has its result."""
    measured = _measure(plan, configurations, settings)

    def make(baseline: None) -> Written:
        return make_benchmark_report(settings, plan.benchmark_id)

    report = try_report(get_run_logger(), "report", f"--benchmark {plan.benchmark_id}", make)
    found = {"benchmark_id": plan.benchmark_id, "measured": [asdict(one) for one in measured]}
    if report is None:
        return completed("", found)
    headline = report.document.headline[0]
    publish_page("benchmark", json.loads(plan.spec_json)["name"], report.document, headline)
    return completed(headline, {**found, "report": str(report.html.absolute())})


def print_conclusion(benchmark_id: str, settings: Settings) -> None:
    """Print the tables at the end of a command."""
    plan, configurations = read_plan(benchmark_id, settings)
    console = plain_console()
    if plan.profile is None:
        print_benchmark(benchmark_id, _measure(plan, configurations, settings), console)
        if len(configurations) == 1 and plan.repeats >= LEAST_RUNS:
            noise = DatabaseThread(settings).run(lambda connection: read_noise(connection, benchmark_id))
            print_noise(noise, configurations[0].spec, console)
    else:
        rows = DatabaseThread(settings).run(lambda connection: read_benchmark_rows(connection, benchmark_id))
        print_points(rows, console)
    report = benchmark_dir(settings, benchmark_id) / HTML_NAME
    if report.exists():
        print_text(f"Report: {report}", console)


def print_points(rows: BenchmarkRows, console: Console) -> None:
    """Print the points of a sweep, with the columns that fit a terminal."""
    print_text(f"\nBenchmark {rows.benchmark_id}: latency under load", console)
    columns = [column for column in POINTS if column.header in POINT_HEADERS]
    print_table(tabulate("Points", columns, label_points(rows.points)), console)


def _measure(plan: Plan, configurations: list[Configuration], settings: Settings) -> list[Measured]:
    labels = {one.config_id: one.label for one in configurations}
    limits = {str(name): limit for name, limit in configurations[0].spec.gate.max_slowdown.items()}
    return DatabaseThread(settings).run(lambda connection: read_measured(connection, plan.benchmark_id, labels, limits))


def name_benchmark() -> str:
    """Return the flow run's name for the UI."""
    try:
        resume, spec = flow_run.parameters.get("resume"), flow_run.parameters.get("spec")
        return str(resume or f"benchmark {as_spec(spec).name}")
    except Exception:
        return "benchmark"  # the flow reports an invalid spec


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
    noise: bool = False,
) -> dict[str, Any]:
    """Run every configuration several times, interleaved, and compare each with the first; or sweep the load.

    Args:
        spec: a spec, the path of a YAML file, or {file, overrides} to override fields of one.
        repeats: runs per configuration (default 5, the minimum for a comparison; 1 with a profile, 10 for noise).
        sweep: values by dotted field: {"engine.max_concurrency": [16, 32]}.
        resume: id of a benchmark to resume; excludes all other arguments.
        profile: `sweep` measures latency under load, from one request at a time to all at once.
        points: rates between the two ends of the sweep (default 8).
        arrival: arrival pattern of each rate (default: the spec's load, or constant).
        seconds: maximum seconds of sending per sweep point.
        requests: maximum requests per sweep point.
        noise: measure how much the spec differs from itself; excludes sweep and profile.
    """
    settings = load_settings()
    settings.pass_on_token()
    if not settings.tracebacks:
        speak_in_sentences()
    if resume is not None:
        plan, configurations = read_plan(resume, settings)
    elif spec is not None and noise:
        check_deployed_spec(spec)
        if sweep or profile:
            raise SpecError("noise measures one configuration. hint: leave out sweep and profile.")
        plan, configurations = plan_noise(as_spec(spec), NOISE_RUNS if repeats is None else repeats)
        write_plan(plan, settings)
    elif spec is not None:
        check_deployed_spec(spec)
        options = {"points": points, "arrival": arrival, "seconds": seconds, "requests": requests}
        chosen = choose_profile(profile, {name: value for name, value in options.items() if value is not None})
        asked = choose_repeats(repeats, chosen)
        plan, configurations = plan_benchmark(as_spec(spec), sweep or {}, asked, profile=chosen)
        write_plan(plan, settings)
    else:
        raise SpecError("No benchmark given. hint: pass a spec, or resume with the id of a benchmark.")
    return run_plan(plan, configurations, settings)


def run_plan(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, Any]:
    """Do the remaining runs. Raises RunFailedError if a configuration fails, after measuring the others."""
    folder = benchmark_dir(settings, plan.benchmark_id)
    lock = lock_run(folder)
    if lock is None:
        raise StoreError(f"Benchmark {plan.benchmark_id} is in use by {name_holder(folder)}. hint: wait for its end.")
    try:
        with park_engines() if plan.profile else contextlib.nullcontext():
            plan, configurations, failed = do_all_runs(plan, configurations, settings)
    finally:
        lock.release()
    state = conclude_benchmark(plan, configurations, settings)
    if failed:
        told = " ".join(f"{label}: {reason}" for label, reason in failed.items())
        raise RunFailedError(
            f"Benchmark {plan.benchmark_id} has configurations that did not complete. {told} The others are measured. "
            f"hint: retry with `assayline benchmark --resume {plan.benchmark_id}`."
        )
    return state

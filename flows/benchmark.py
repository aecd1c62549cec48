"""benchmark: repeats and sweeps of one spec, for speeds that can be compared.

    python -m flows.benchmark SPEC [--repeats 5] [--sweep engine.window=16,32,64]... [--dry-run] [--FIELD VALUE ...]
    python -m flows.benchmark --resume BENCHMARK_ID

Each repeat is a run of its own, by the flow `evaluate`, with an engine of its own; runs follow one another, so there is
one engine at a time on a device. A killed benchmark goes on where it stopped.
"""

import argparse
import sys
from dataclasses import asdict
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from assayline.benchmark import (
    Configuration,
    Plan,
    benchmark_dir,
    list_left,
    parse_sweep,
    plan_benchmark,
    read_plan,
    write_plan,
)
from assayline.benchmark_result import Measured, read_measured
from assayline.errors import EngineError, RunFailedError, SpecError, StoreError
from assayline.resume import NEVER
from assayline.run_locks import lock_run, name_holder
from assayline.settings import Settings, load_settings
from assayline.spec import EvalSpec
from assayline.spec_file import load_spec
from assayline.store.thread import DatabaseThread
from flows.benchmark_summary import describe_benchmark, print_benchmark
from flows.command import leave_after, parse_words, plain_console, say_errors, start_server
from flows.evaluate import as_spec, evaluate
from flows.logs import quiet_shutdown, speak_in_sentences
from flows.summary import print_text
from tasks.publish import publish_benchmark

EPILOG = """--sweep takes any field of the spec by its dotted name, and values that commas separate, or a YAML list
in brackets; given several times, every combination is a configuration. The engine is warmed up, and the
prefix cache is off, unless --engine.warm_up or --engine.args.enable_prefix_caching say otherwise.

Exit codes: 0 all runs are completed, 2 spec or sweep, 3 prompts, 4 model, 5 engine, 6 database or files,
7 a configuration that did not complete (the others are measured)."""


def name_benchmark() -> str:
    """The run's name in the UI."""
    try:
        resume, spec = flow_run.parameters.get("resume"), flow_run.parameters.get("spec")
        return str(resume or f"benchmark {as_spec(spec).name}")
    except Exception:
        return "benchmark"  # the flow itself says what is wrong with its spec


@flow(name="benchmark", flow_run_name=name_benchmark, persist_result=False)
def benchmark(
    spec: EvalSpec | str | None = None,
    repeats: int = 5,
    sweep: dict[str, list[str]] | None = None,
    resume: str | None = None,
) -> dict[str, Any]:
    """Runs every configuration several times, in turn, and compares them with the first.

    Args:
        spec: the spec, or the path of a YAML file with one.
        repeats: runs per configuration; five are needed for a comparison.
        sweep: values, as YAML text, by dotted field: {"engine.window": ["16", "32"]}.
        resume: id of a benchmark to go on with; then without the others.
    """
    settings = load_settings()
    if not settings.tracebacks:
        speak_in_sentences()
    if resume is not None:
        plan, configurations = read_plan(resume, settings)
    elif spec is not None:
        plan, configurations = plan_benchmark(as_spec(spec), sweep or {}, repeats, settings)
        write_plan(plan, settings)
    else:
        raise SpecError("A benchmark needs a spec, or the id of a benchmark to go on with.")
    return run_plan(plan, configurations, settings)


def run_plan(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, Any]:
    """Does the runs that are left. Raises RunFailedError if a configuration does not complete, others measured."""
    folder = benchmark_dir(settings, plan.benchmark_id)
    lock = lock_run(folder)
    if lock is None:
        raise StoreError(f"Benchmark {plan.benchmark_id} is worked on by {name_holder(folder)}. Wait for its end.")
    log = get_run_logger()
    failed: dict[str, str] = {}
    try:
        left = list_left(plan, configurations, settings)
        total = plan.repeats * len(configurations)
        log.info("Benchmark %s: %d of %d runs to do", plan.benchmark_id, len(left), total)
        for number, configuration in enumerate(left, total - len(left) + 1):
            if configuration.label in failed:
                continue
            log.info("Run %d of %d: %s", number, total, configuration.label)
            try:
                evaluate(configuration.spec, NEVER, plan.benchmark_id)
            except (EngineError, RunFailedError) as error:  # that of a size that does not fit, say
                failed[configuration.label] = str(error)
                log.error("%s is left out from here on: %s", configuration.label, error)
    finally:
        lock.release()
    measured = _measure(plan, configurations, settings)
    _publish(plan.benchmark_id, measured)
    if failed:
        told = " ".join(f"{label}: {reason}" for label, reason in failed.items())
        raise RunFailedError(
            f"Benchmark {plan.benchmark_id} has configurations that did not complete. {told} The others are measured; "
            f"`python -m flows.benchmark --resume {plan.benchmark_id}` tries again."
        )
    return {"benchmark_id": plan.benchmark_id, "measured": [asdict(one) for one in measured]}


def _measure(plan: Plan, configurations: list[Configuration], settings: Settings) -> list[Measured]:
    limits = {str(name): limit for name, limit in configurations[0].spec.gate.max_slowdown.items()}
    return DatabaseThread(settings).run(
        lambda connection: read_measured(connection, plan.benchmark_id, configurations, limits)
    )


def _publish(benchmark_id: str, measured: list[Measured]) -> None:
    """The results are stored: an API that cannot take their picture does not fail the benchmark."""
    try:
        publish_benchmark(benchmark_id, describe_benchmark(benchmark_id, measured))
    except Exception as error:
        get_run_logger().error("The benchmark's page has no table: %s: %s", type(error).__name__, error)


def run_command(arguments: list[str] | None = None) -> int:
    """Runs what the command line names, and prints the tables. Returns the exit code."""
    known, rest = _make_parser().parse_known_args(arguments)
    settings = load_settings()
    path, overrides = parse_words(rest)
    if known.resume is not None:
        if path or overrides or known.sweep or known.repeats is not None:
            raise SpecError("--resume goes on with the plan that the benchmark has: leave SPEC, fields and sweep out.")
        plan, configurations = read_plan(known.resume, settings)
    elif path is None:
        raise SpecError("Give a SPEC, or --resume BENCHMARK_ID.")
    else:
        repeats = 5 if known.repeats is None else known.repeats
        spec = load_spec(path, overrides)
        plan, configurations = plan_benchmark(spec, parse_sweep(known.sweep), repeats, settings, list(overrides))
    if known.dry_run:
        _print_plan(plan, configurations, settings)
        return 0
    if known.resume is None:
        write_plan(plan, settings)
    start_server()
    try:
        benchmark(resume=plan.benchmark_id)
    except RunFailedError as error:
        quiet_shutdown()
        _print_measured(plan, configurations, settings)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BaseException:
        left = len(list_left(plan, configurations, settings))
        print(
            f"Benchmark {plan.benchmark_id} is unfinished, {left} of {plan.repeats * len(configurations)} runs left: "
            f"`python -m flows.benchmark --resume {plan.benchmark_id}` goes on with it.",
            file=sys.stderr,
        )
        raise
    quiet_shutdown()
    _print_measured(plan, configurations, settings)
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.benchmark",
        usage="python -m flows.benchmark [SPEC] [--repeats N] [--sweep FIELD=A,B ...] [--resume BENCHMARK_ID] "
        "[--dry-run] [--FIELD VALUE ...]",
        description="Measure configurations of a spec over repeats.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="runs per configuration (default: 5)")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="FIELD=A,B",
        help="values of a field; may be given several times",
    )
    parser.add_argument("--resume", metavar="BENCHMARK_ID", help="go on with this benchmark")
    parser.add_argument("--dry-run", action="store_true", help="check and list the configurations; run nothing")
    return parser


def _print_plan(plan: Plan, configurations: list[Configuration], settings: Settings) -> None:
    left = list_left(plan, configurations, settings)
    console = plain_console()
    total = plan.repeats * len(configurations)
    print_text(
        f"{len(configurations)} configurations × {plan.repeats} repeats, {len(left)} of {total} runs left:", console
    )
    for configuration in configurations:
        args = configuration.spec.engine.args
        print_text(f"  {configuration.label}: config_id {configuration.config_id}, engine.args {args}", console)
    print_text(f"in this order: {'; '.join(configuration.label for configuration in left)}", console)
    print_text("Nothing was run or stored.", console)


def _print_measured(plan: Plan, configurations: list[Configuration], settings: Settings) -> None:
    print_benchmark(plan.benchmark_id, _measure(plan, configurations, settings), plain_console())


if __name__ == "__main__":
    leave_after(lambda: say_errors(run_command))

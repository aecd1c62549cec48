"""The command line of `benchmark`: its options, its plan in words, its run and its end."""

import argparse
import sys
from typing import TYPE_CHECKING

from assayline.benchmark.profile import (
    ARRIVALS,
    POINTS,
    REPEATS,
    SECONDS,
    THROUGHPUT_REQUESTS,
    choose_profile,
    choose_repeats,
)
from assayline.errors import RunFailedError, SpecError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.process import prefect_api
from assayline.flows.cli.words import parse_words, plain_console
from assayline.flows.live.logs import quiet_shutdown

if TYPE_CHECKING:
    from assayline.benchmark.plan import Configuration, Plan
    from assayline.settings import Settings

OF_PROFILE = ("points", "arrival", "seconds", "requests")
"""Options that say how a profile is run."""

EPILOG = f"""--sweep takes any field of the spec by its dotted name, and values that commas separate, or a YAML list
in brackets; given several times, every combination is a configuration. The engine is warmed up, and the
prefix cache is off, unless --engine.warm_up or --engine.args.enable_prefix_caching say otherwise.

--profile sweep measures latency under load: one request after another (synchronous), all at once
(throughput), then rates evenly between what these two achieved. Each point is a run with another `load`;
what else the spec's load says is kept, and the engine is loaded once for all of them. It needs
engine.backend async or server. The report is written into the benchmark's folder (docs/guides/sweeps.md).
Without --seconds, --requests and limits in the spec's load a point sends for {SECONDS:g} s, and the
throughput point at most {THROUGHPUT_REQUESTS:,} requests.

Exit codes: 0 all runs are completed, 2 spec or sweep, 3 prompts, 4 model, 5 engine, 6 database or files,
7 a configuration that did not complete (the others are measured)."""


def run(arguments: list[str]) -> int:
    """Runs what the command line names, and prints the tables. Returns the exit code."""
    known, rest = _make_parser().parse_known_args(arguments)

    from assayline.benchmark.plan import count_left, write_plan
    from assayline.files import check_data_folder
    from assayline.settings import load_settings

    settings = load_settings()
    check_data_folder(settings.data_dir)
    plan, configurations = plan_from_words(known, rest, settings)
    if known.dry_run:
        print_plan(plan, configurations, settings)
        return 0
    if known.resume is None:
        write_plan(plan, settings)
    with prefect_api():
        from assayline.flows.benchmark import benchmark, print_conclusion

        try:
            benchmark(resume=plan.benchmark_id)
        except RunFailedError as error:
            quiet_shutdown()
            print_conclusion(plan.benchmark_id, settings)
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        except BaseException as error:
            error.add_note(
                f"Benchmark {plan.benchmark_id} is unfinished, {count_left(plan.benchmark_id, settings)} of "
                f"{plan.total} runs left: `assayline benchmark --resume {plan.benchmark_id}` resumes it."
            )
            raise
        quiet_shutdown()
        print_conclusion(plan.benchmark_id, settings)
    return 0


def _make_parser() -> argparse.ArgumentParser:
    """All but SPEC and fields, which are in no fixed place among the options."""
    parser = make_parser(
        "benchmark",
        EPILOG,
        "%(prog)s [SPEC] [--repeats N] [--sweep FIELD=A,B ... | --profile sweep] "
        "[--resume BENCHMARK_ID] [--dry-run] [--FIELD VALUE ...]",
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help=f"runs per configuration (default: {REPEATS}; of a profile's points 1)"
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="FIELD=A,B",
        help="values of a field; may be given several times",
    )
    parser.add_argument("--profile", choices=["sweep"], help="latency under load: see below")
    parser.add_argument(
        "--points", type=int, metavar="N", help=f"rates between the two ends of the sweep (default: {POINTS})"
    )
    parser.add_argument(
        "--arrival", choices=ARRIVALS, help="how a rate's requests come (default: as in the spec's load, or constant)"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="longest sending per point of the sweep")
    parser.add_argument("--requests", type=int, metavar="N", help="most requests per point of the sweep")
    parser.add_argument("--resume", metavar="BENCHMARK_ID", help="resume this benchmark")
    parser.add_argument("--dry-run", action="store_true", help="check and list the configurations; run nothing")
    return parser


def plan_from_words(
    known: argparse.Namespace, rest: list[str], settings: "Settings"
) -> "tuple[Plan, list[Configuration]]":
    """The benchmark that a command line means: one that was begun, or a new one. Raises SpecError."""
    from assayline.benchmark.configurations import parse_sweep, plan_benchmark, read_plan
    from assayline.spec.file import load_spec

    settings.pass_on_token()
    path, overrides = parse_words(rest, vars(known))
    options = {name: getattr(known, name) for name in OF_PROFILE if getattr(known, name) is not None}
    if known.resume is not None:
        if path or overrides or options or known.sweep or known.profile or known.repeats is not None:
            raise SpecError("--resume keeps the plan that the benchmark has: leave SPEC, fields and sweep out.")
        return read_plan(known.resume, settings)
    if path is None:
        raise SpecError("Give a SPEC, or --resume BENCHMARK_ID.")
    profile = choose_profile(known.profile, options)
    repeats = choose_repeats(known.repeats, profile)
    spec = load_spec(path, overrides)
    return plan_benchmark(spec, parse_sweep(known.sweep), repeats, list(overrides), profile)


def print_plan(plan: "Plan", configurations: "list[Configuration]", settings: "Settings") -> None:
    """The configurations, and in which order they would be run."""
    from assayline.benchmark.configurations import list_left
    from assayline.flows.cli.words import print_text

    left = list_left(plan, configurations, settings)
    console = plain_console()
    points = f" and {plan.profile.points} rates" if plan.planned and plan.profile else ""
    print_text(
        f"{len(configurations)} configurations{points} × {plan.repeats} repeats, {len(left) + plan.planned} of "
        f"{plan.total} runs left:",
        console,
    )
    for configuration in configurations:
        print_text(
            f"  {configuration.label}: config_id {configuration.config_id}, {_show_setup(configuration)}", console
        )
    labels = [configuration.label for configuration in left]
    rates = ["rates evenly between what these two achieve"] if plan.planned else []
    print_text(f"in this order: {'; '.join([*labels, *rates])}", console)
    print_text("Nothing was run or stored.", console)


def _show_setup(configuration: "Configuration") -> str:
    """What makes it another configuration, as far as a line has room."""
    engine, load = configuration.spec.engine, configuration.spec.load
    if load is None:
        return f"engine.args {engine.args}"
    limits = load.model_dump(mode="json", exclude_defaults=True, exclude={"arrival"})
    return f"engine.args {engine.args}, arrival {load.arrival.model_dump(mode='json')}, {limits}"

"""The command line of a benchmark: its options, and its plan in words."""

import argparse
from collections.abc import Mapping
from typing import Any

from assayline.benchmark import Configuration, Plan, list_left, plan_benchmark, read_plan
from assayline.errors import SpecError
from assayline.settings import Settings
from assayline.spec_file import load_spec
from assayline.sweep import parse_sweep
from assayline.sweep_profile import ARRIVALS, POINTS, SECONDS, THROUGHPUT_REQUESTS, SweepProfile
from flows.command import parse_words, plain_console
from flows.summary import print_text

REPEATS = 5
"""Of each configuration: what a comparison needs. The points of a profile are one run each."""
OF_PROFILE = ("points", "arrival", "seconds", "requests")
"""Options that say how a profile is run."""

EPILOG = f"""--sweep takes any field of the spec by its dotted name, and values that commas separate, or a YAML list
in brackets; given several times, every combination is a configuration. The engine is warmed up, and the
prefix cache is off, unless --engine.warm_up or --engine.args.enable_prefix_caching say otherwise.

--profile sweep measures latency under load: one request after another (synchronous), all at once
(throughput), then rates evenly between what these two achieved. Each point is a run with another `load`;
what else the spec's load says is kept, and the engine is loaded once for all of them. It needs
engine.backend async or server. The report is written into the benchmark's folder (docs/sweeps.md).
Without --seconds, --requests and limits in the spec's load a point sends for {SECONDS:g} s, and the
throughput point at most {THROUGHPUT_REQUESTS:,} requests.

Exit codes: 0 all runs are completed, 2 spec or sweep, 3 prompts, 4 model, 5 engine, 6 database or files,
7 a configuration that did not complete (the others are measured)."""


def make_parser() -> argparse.ArgumentParser:
    """All but SPEC and fields, which are in no fixed place among the options."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.benchmark",
        usage="python -m flows.benchmark [SPEC] [--repeats N] [--sweep FIELD=A,B ... | --profile sweep] "
        "[--resume BENCHMARK_ID] [--dry-run] [--FIELD VALUE ...]",
        description="Measure configurations of a spec over repeats, or one under every load.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
    parser.add_argument("--resume", metavar="BENCHMARK_ID", help="go on with this benchmark")
    parser.add_argument("--dry-run", action="store_true", help="check and list the configurations; run nothing")
    return parser


def plan_from_words(known: argparse.Namespace, rest: list[str], settings: Settings) -> tuple[Plan, list[Configuration]]:
    """The benchmark that a command line means: one that was begun, or a new one. Raises SpecError."""
    path, overrides = parse_words(rest)
    options = {name: getattr(known, name) for name in OF_PROFILE if getattr(known, name) is not None}
    if known.resume is not None:
        if path or overrides or options or known.sweep or known.profile or known.repeats is not None:
            raise SpecError("--resume goes on with the plan that the benchmark has: leave SPEC, fields and sweep out.")
        return read_plan(known.resume, settings)
    if path is None:
        raise SpecError("Give a SPEC, or --resume BENCHMARK_ID.")
    profile = choose_profile(known.profile, options)
    repeats = choose_repeats(known.repeats, profile)
    spec = load_spec(path, overrides)
    return plan_benchmark(spec, parse_sweep(known.sweep), repeats, settings, list(overrides), profile)


def choose_profile(name: str | None, options: Mapping[str, Any]) -> SweepProfile | None:
    """The profile of this name with these options. Raises SpecError for options without one."""
    if name is None and options:
        raise SpecError(f"--{next(iter(options))} says how a profile is run. Add --profile sweep, or leave it out.")
    return SweepProfile(**options) if name else None


def choose_repeats(given: int | None, profile: SweepProfile | None) -> int:
    """Runs per configuration."""
    if given is not None:
        return given
    return 1 if profile else REPEATS


def print_plan(plan: Plan, configurations: list[Configuration], settings: Settings) -> None:
    """The configurations, and in which order they would be run."""
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


def _show_setup(configuration: Configuration) -> str:
    """What makes it another configuration, as far as a line has room."""
    engine, load = configuration.spec.engine, configuration.spec.load
    if load is None:
        return f"engine.args {engine.args}"
    limits = load.model_dump(mode="json", exclude_defaults=True, exclude={"arrival"})
    return f"engine.args {engine.args}, arrival {load.arrival.model_dump(mode='json')}, {limits}"

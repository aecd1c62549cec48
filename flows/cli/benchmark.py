"""The command line of `benchmark`: options, dry run, run and summary."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from assayline.benchmark.profile import (
    ARRIVALS,
    POINTS,
    REPEATS,
    SECONDS,
    THROUGHPUT_REQUESTS,
)
from assayline.errors import RunFailedError, SpecError
from assayline.flows.cli.options import add_dry_run, make_parser, parse_with_dry_run
from assayline.flows.cli.words import parse_words

if TYPE_CHECKING:
    from assayline.benchmark.campaign import Campaign, Cell
    from assayline.benchmark.configurations import BenchmarkAsk
    from assayline.settings import Settings

EPILOG = f"""--sweep takes any field of the spec by its dotted name, with comma-separated values or a YAML list in
brackets. Repeat it to measure every combination. SPEC_OR_SUITE may be a suite, whose evaluations are all
measured with each combination. The report names the cheapest that is shown to keep
gate.max_accuracy_drop, and the fastest. Prefix caching is off unless the spec or the command sets
engine.args.enable_prefix_caching.

--quality kl chooses without scores: after the runs, the engine of each configuration reads 30 answers of the
baseline (gate.reread.prompts). The cheapest whose probabilities are shown within three times what the
baseline's engine differs from itself (or gate.reread.max_kl, nats per token) is named.

--profile sweep measures latency under load: one request at a time (synchronous), all at once
(throughput), then rates evenly spaced between the two achieved rates. Each point is a run with its own
`load.arrival`; the spec's other load fields are kept, and the engine is loaded once for all points. It
needs engine.backend async or server. The report is in the benchmark's folder (docs/guides/sweeps.md).
Without --seconds, --requests or limits in the spec's load, a point sends for {SECONDS:g} s, and the
throughput point sends at most {THROUGHPUT_REQUESTS:,} requests.

--profile slo finds the highest rate at which 19 of 20 requests are good by one SLO: the two ends, then
rates between them by bisection, at most 8 points in all. A rate at which the engine is saturated is too high.

Without --sweep and --profile, a spec runs several times unchanged. Two consecutive runs share an engine,
whose prefix cache is emptied between them, so that differences between runs and between engines can be told
apart. Engines of servers, of several workers and on Ray are not shared. Reports and gates then show
differences as multiples of this noise (docs/guides/comparing.md). Evaluate the spec once before: with known
lengths of answers, requests are sent in the order of later runs.

Exit codes: 0 all runs completed, 2 spec or sweep, 3 prompts, 4 model, 5 engine, 6 database or files,
7 a configuration did not complete (the others are measured)."""
PARSER = make_parser(
    "benchmark",
    EPILOG,
    "%(prog)s [SPEC_OR_SUITE] [--repeats N] [--sweep FIELD=A,B ... [--baseline A] [--quality kl] | --profile sweep | "
    "--profile slo --slo NAME] "
    "[--resume BENCHMARK_ID | --fresh] [--dry-run [engine]] [--FIELD VALUE ...]",
)
PARSER.add_argument(
    "--repeats",
    type=int,
    metavar="N",
    help=f"runs per configuration (default: {REPEATS}, or 1 with --profile)",
)
PARSER.add_argument(
    "--sweep",
    action="append",
    default=[],
    metavar="FIELD=A,B",
    help="values of a field to measure; repeatable",
)
PARSER.add_argument(
    "--baseline", metavar="VALUE", help="configuration to compare with (default: the first in quality, else the best)"
)
PARSER.add_argument(
    "--quality", choices=["accuracy", "kl"], help="quality by which to choose (default: accuracy); kl: see below"
)
PARSER.add_argument("--profile", choices=["sweep", "slo"], help="measure latency under load: see below")
PARSER.add_argument("--slo", metavar="NAME", help="SLO of the spec whose highest rate to find, with --profile slo")
PARSER.add_argument(
    "--points", type=int, metavar="N", help=f"rates between the two ends of the sweep (default: {POINTS})"
)
PARSER.add_argument(
    "--arrival", choices=ARRIVALS, help="arrival pattern of each rate (default: the spec's load, or constant)"
)
PARSER.add_argument("--seconds", type=float, metavar="S", help="maximum seconds of sending per sweep point")
PARSER.add_argument("--requests", type=int, metavar="N", help="maximum requests per sweep point")
which = PARSER.add_mutually_exclusive_group()
which.add_argument(
    "--resume", metavar="BENCHMARK_ID", help="resume a benchmark (default: the newest unfinished one of this command)"
)
which.add_argument("--fresh", action="store_true", help="start a new benchmark even if one is unfinished")
add_dry_run(PARSER, "check and list the configurations without running them")


def run(arguments: list[str]) -> int:
    """Run the benchmark that the command line describes and print its tables. Return the exit code."""
    known, rest = parse_with_dry_run(PARSER, arguments)

    from assayline.benchmark.campaign import count_left, find_campaign, write_campaign
    from assayline.benchmark.configurations import plan_benchmark
    from assayline.files import check_data_folder
    from assayline.settings import load_settings

    settings = load_settings()
    check_data_folder(settings.data_dir)
    plan = plan_benchmark(read_ask(known, rest), settings)
    if known.dry_run:
        print_plan(plan, settings, known.dry_run == "engine")
        return 0
    write_campaign(plan, settings)
    from assayline.flows.cli.tables import print_conclusion
    from assayline.flows.cli.terminal import open_front

    benchmark_id = plan.campaign_id
    try:
        with open_front(settings) as call:
            call("benchmark", resume=benchmark_id)
    except RunFailedError as error:
        print_conclusion(benchmark_id, settings)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BaseException as error:
        error.add_note(
            f"Benchmark {benchmark_id} is unfinished: "
            f"{count_left(find_campaign(settings, 'benchmark', benchmark_id), settings)} of {plan.total} runs left. "
            f"hint: repeat the command to resume it, or pass --resume {benchmark_id}."
        )
        raise
    print_conclusion(benchmark_id, settings)
    return 0


def read_ask(known: argparse.Namespace, rest: list[str]) -> "BenchmarkAsk":
    """Return what the command line asks for. Raises SpecError."""
    from assayline.benchmark.configurations import BenchmarkAsk, parse_sweep
    from assayline.spec.file import SpecFile, parse_value

    path, texts = parse_words(rest, vars(known))
    if path is None and texts:
        raise SpecError(f"--{next(iter(texts))} is a field of a spec, and none is given. hint: pass a SPEC.")
    overrides = {field: parse_value(field, text) for field, text in texts.items()}
    options = {name: value for name, value in vars(known).items() if name not in ("fresh", "dry_run")}
    options |= {
        "spec": SpecFile(file=path, overrides=overrides) if path else None,
        "sweep": parse_sweep(known.sweep) or None,
        "resume": known.resume or ("never" if known.fresh else "auto"),
    }
    return BenchmarkAsk(**options)


def print_plan(plan: "Campaign", settings: "Settings", asks_vllm: bool) -> None:
    """Print the configurations and the order of the runs."""
    from assayline.benchmark.campaign import list_left
    from assayline.flows.cli.dry_run import check_runs
    from assayline.flows.cli.words import print_text

    left, cells, shared = list_left(plan, settings), plan.cells, plan.runs_per_engine or 0
    points = f" and {plan.profile.points} rates" if plan.planned and plan.profile else ""
    print_text(
        f"{len(cells)} configurations{points} × {cells[0].repeats} repeats, {len(left) + plan.planned} of "
        f"{plan.total} runs left{f', {shared} per engine' if shared > 1 else ''}:",
    )
    for cell in cells:
        print_text(f"  {cell.label}{_show_load(cell)}")
    print_text(f"engine.args of the first: {json.dumps(cells[0].spec.engine.args)}")
    if plan.quality == "kl":
        print_text("Then each engine reads answers of the baseline.")
    if plan.planned:
        print_text("Then rates evenly spaced between the two achieved rates.")
    for note in check_runs([(cell.label, cell.spec) for cell in cells], settings, asks_vllm):
        print_text(note)
    print_text("Dry run: nothing was run or stored.")


def _show_load(cell: "Cell") -> str:
    """Format the arrival and the limits of a configuration."""
    if (load := cell.spec.load) is None:
        return ""
    return f": {json.dumps(load.model_dump(mode='json', exclude_defaults=True))}"

"""The command line of `noise`: a benchmark of one configuration, the spec as given."""

from assayline.flows.cli.benchmark import print_plan, run_benchmark
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import parse_words

EPILOG = """The spec runs several times unchanged. Two consecutive runs share an engine, whose prefix cache is emptied
between them, so that differences between runs and between engines can be told apart. Engines of servers, of several
workers and on Ray are not shared.

Reports and gates then show differences as multiples of this noise (docs/guides/comparing.md).
Evaluate the spec once before: with known lengths of answers, requests are sent in the order of later runs.
An interrupted measurement resumes with `assayline benchmark --resume BENCHMARK_ID`.

Exit codes: 0 all runs completed, 2 spec, 3 prompts, 4 model, 5 engine, 6 database or files, 7 a run did not
complete."""
PARSER = make_parser("noise", EPILOG, "%(prog)s SPEC [--repeats N] [--dry-run] [--FIELD VALUE ...]")
PARSER.add_argument("--repeats", type=int, default=10, metavar="N", help="runs, at least 5 (default: 10)")
PARSER.add_argument("--dry-run", action="store_true", help="check the spec and show the plan without running it")


def run(arguments: list[str]) -> int:
    """Measure the noise of the spec that the command line names and print it. Return the exit code."""
    known, rest = PARSER.parse_known_args(arguments)

    from assayline.benchmark.configurations import plan_noise
    from assayline.benchmark.plan import write_plan
    from assayline.files import check_data_folder
    from assayline.settings import load_settings
    from assayline.spec.file import load_spec

    settings = load_settings()
    check_data_folder(settings.data_dir)
    settings.pass_on_token()
    path, overrides = parse_words(rest, vars(known))
    if path is None:
        PARSER.error("pass a SPEC")
    plan, configurations = plan_noise(load_spec(path, overrides), known.repeats)
    if known.dry_run:
        print_plan(plan, configurations, settings)
        return 0
    write_plan(plan, settings)
    return run_benchmark(plan, configurations, settings)

"""The command line of `night`: for cron, systemd or Slurm, what the deployment `nightly` does."""

from assayline.flows.cli.options import add_tags, make_parser
from assayline.flows.cli.words import parse_words, print_text

EPILOG = """A night is a new run of the spec, judged by its gate as one of 60 nights, with its report, its history and
the leaderboard (docs/guides/nightly-runs.md). If ASSAYLINE_WEBHOOK is set, a night that is worse, suspect or failed
sends a message to that URL. Override any field of the spec by --FIELD VALUE.

Exit codes: 0 no limit fails, or no baseline is given, 1 a limit fails, 15 no limit fails, and one comparison alone
would fail, 8 the runs cannot be compared; 2 to 7 and 12 are those of `assayline evaluate`."""
PARSER = make_parser("night", EPILOG, "%(prog)s SPEC [--baseline NAME|RUN_ID] [--resume] [--FIELD VALUE ...]")
PARSER.add_argument(
    "--baseline",
    metavar="NAME|RUN_ID",
    help="pinned name or run id to judge by (default: gate.baseline of the spec; without either, nothing is judged)",
)
PARSER.add_argument(
    "--resume", action="store_true", help="go on with an unfinished run of this spec (default: a new run)"
)
add_tags(PARSER)


def run(arguments: list[str]) -> int:
    """Spend the night that the command line names, and print its verdict. Return the exit code."""
    known, rest = PARSER.parse_known_args(arguments)
    path, overrides = parse_words(rest, vars(known))
    if path is None:
        PARSER.error("pass a SPEC")

    from assayline.comparison.gate import GateReport
    from assayline.files import check_data_folder
    from assayline.flows.cli.gate import print_verdict
    from assayline.flows.cli.terminal import open_front
    from assayline.settings import load_settings
    from assayline.spec.file import load_spec

    settings, spec = load_settings(), load_spec(path, overrides)
    check_data_folder(settings.data_dir)
    with open_front(settings) as call:
        resume = "auto" if known.resume else "never"
        found = call("night", spec=spec, baseline=known.baseline, resume=resume, tags=known.tag)
    if report := found if isinstance(found, GateReport) else found.gate:
        return print_verdict(report)
    print_text(found.headline)
    return 0

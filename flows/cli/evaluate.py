"""The command line of `evaluate`: `assayline evaluate SPEC [--field value …] [--fresh] [--resume RUN_ID]`."""

from typing import TYPE_CHECKING

from assayline.errors import SpecError
from assayline.flows.cli.options import add_dry_run, add_tags, make_parser, parse_with_dry_run
from assayline.flows.cli.words import complete_run_id, parse_words, print_text

if TYPE_CHECKING:
    from assayline.settings import Settings
    from assayline.spec.evaluation import EvalSpec

USAGE = "%(prog)s [SPEC] [--resume RUN_ID | --fresh] [--prefect] [--dry-run [engine]] [--FIELD VALUE ...]"
EPILOG = """SPEC is a YAML file, such as examples/arithmetic.yaml, or @NAME with --model MODEL for a named benchmark
(`assayline list benchmarks` lists them).

Override any field of the spec: --prompts.limit 10, --sampling.temperature 0.7,
--engine.args.max_num_seqs 64. Values are YAML. Fields: docs/reference/spec.md.

To resume a run that was interrupted, failed or was killed, rerun the command: stored answers are kept
and only the rest is generated (docs/concepts/resume.md).

With PREFECT_API_URL, in the environment or in Prefect's active profile, the run is a flow run
(docs/guides/prefect.md).

Exit codes: 0 every request has a result or an error row, 2 spec,
 3 prompts, 4 model, 5 engine or device, 6 database or files, 7 run,
 9 a dry run in which every request is an error row,
 12 a judge that agrees too little with the labels."""
PARSER = make_parser("evaluate", EPILOG, USAGE)
which = PARSER.add_mutually_exclusive_group()
which.add_argument(
    "--resume",
    metavar="RUN_ID",
    help="resume this run; without SPEC, with the run's own spec (default: the newest unfinished run of SPEC)",
)
which.add_argument("--fresh", action="store_true", help="start a new run even if one of this spec is unfinished")
PARSER.add_argument(
    "--prefect", action="store_true", help="make it a flow run, on a temporary server if no API is configured"
)
add_tags(PARSER)
add_dry_run(
    PARSER,
    "check spec, model and prompts, print the first rendered prompt and the run that would be resumed; generate and "
    "store nothing",
)


def run(arguments: list[str]) -> int:
    """Run the spec of a command line and print its result. Return the exit code."""
    known, rest = parse_with_dry_run(PARSER, arguments)

    from assayline.files import check_data_folder
    from assayline.settings import load_settings
    from assayline.spec.file import load_spec
    from assayline.store.manifest import AUTO, NEVER

    settings = load_settings()
    resume: str = NEVER if known.fresh else complete_run_id(known.resume, settings) if known.resume else AUTO
    path, overrides = parse_words(rest, vars(known))
    if path is None and known.resume is None:
        PARSER.error("pass a SPEC, or --resume RUN_ID")
    spec = load_spec(path, overrides) if path else read_run_spec(settings, resume, overrides)
    check_data_folder(settings.data_dir)
    if known.dry_run:
        from assayline.flows.cli.dry_run import describe_run

        for line in describe_run(spec, settings, resume, asks_vllm=known.dry_run == "engine"):
            print_text(line)
        return 0
    from assayline.flows.cli.terminal import open_front

    with open_front(settings, is_flow=known.prefect) as call:
        result = call("evaluate", spec=spec, resume=resume, tags=known.tag)
    from assayline.flows.cli.tables import print_result

    print_result(result, spec)
    print_text(result.headline)
    return 0


def read_run_spec(settings: "Settings", run_id: str, overrides: dict[str, str]) -> "EvalSpec":
    """Return a run's stored spec. Raises SpecError for an unknown run, and for overrides."""
    from assayline.spec.file import parse_stored
    from assayline.store.manifest import SPEC_NAME, find_run, read_spec_json

    if overrides:
        raise SpecError(
            f"--{next(iter(overrides))} cannot be combined with --resume {run_id}: a run resumes with its stored spec. "
            "hint: leave the field out, or start a new run with a SPEC."
        )
    run_dir = find_run(settings.data_dir / "runs", run_id)
    return parse_stored(read_spec_json(run_dir), str(run_dir / SPEC_NAME))

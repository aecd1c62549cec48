"""benchmarks: list the benchmarks that `assayline evaluate @NAME --model MODEL` runs.

assayline benchmarks [NAME ...] [--check]
"""

from operator import attrgetter

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import plain_console, print_table, print_text
from assayline.report.document import Column, tabulate

EPILOG = """Run one with `assayline evaluate @NAME --model MODEL`; every field of its spec can be overridden.

--check reads the first row of each benchmark and renders it, so it finds data that moved or changed.

Exit codes: 0 listed or all checks passed, 2 an unknown name, 3 the check of a benchmark failed."""
PARSER = make_parser("benchmarks", EPILOG)
PARSER.add_argument("names", nargs="*", metavar="NAME", help="only these")
PARSER.add_argument("--check", action="store_true", help="read the first row of each")


def run(arguments: list[str]) -> int:
    """Print the table, or the result of each check. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.spec.named import find_benchmark, list_benchmarks

    wanted = [find_benchmark(name).name for name in known.names]
    found = [benchmark for benchmark in list_benchmarks() if not wanted or benchmark.name in wanted]
    console = plain_console()
    if not known.check:
        print_table(tabulate("Benchmarks", COLUMNS, found), console)
        return 0
    failures = 0
    for benchmark in found:
        problem = _check(benchmark.spec)
        failures += problem is not None
        print_text(f"{benchmark.name}: {problem or 'the first row is readable'}", console)
    return 3 if failures else 0


def _check(spec: dict[str, object]) -> str | None:
    """Return what is wrong with the first row of a benchmark's data, or None."""
    from assayline.errors import AssaylineError
    from assayline.prompts.sources import open_reader, read_rows
    from assayline.spec.file import parse_spec

    parsed = parse_spec({"model": "none", **spec})
    if parsed.prompts.task is not None:
        from assayline.harness.tasks import list_tasks

        try:
            names = {name for name, _ in list_tasks(parsed.prompts.task.include_path)}
        except AssaylineError as error:
            return str(error)
        return None if parsed.prompts.task.task in names else f"lm-eval has no task {parsed.prompts.task.task}"
    try:
        first = next(iter(read_rows(parsed.prompts.source)))
        open_reader(parsed.prompts, None, None).read(first)
    except AssaylineError as error:
        return str(error)
    return None


COLUMNS = (
    Column("name", attrgetter("name")),
    Column("measures", attrgetter("measures")),
    Column("prompts", attrgetter("prompts")),
    Column("data", attrgetter("data")),
    Column("license", attrgetter("license")),
    Column("harness task", attrgetter("harness_task")),
    Column("tested on", attrgetter("tested_on")),
)

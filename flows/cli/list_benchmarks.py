"""list benchmarks: list the benchmarks that `assayline evaluate @NAME --model MODEL` runs.

assayline list benchmarks [NAME ...]
"""

from operator import attrgetter

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import print_table
from assayline.report.document import Column, tabulate
from assayline.words import show_name, show_value

EPILOG = """Run one with `assayline evaluate @NAME --model MODEL`; every field of its spec can be overridden.
With --dry-run, its data are read and rendered, and nothing is generated. With NAME, license, revision and
digest are printed, too.

A run whose prompts have another number or digest prints a warning. A revision or digest that is not
printed is not known: the harness reads the newest data, and some digests could not be computed yet.

Exit codes: 0 listed, 2 an unknown name."""
PARSER = make_parser("list benchmarks", EPILOG)
PARSER.add_argument("names", nargs="*", metavar="NAME", help="only these")


def run(arguments: list[str]) -> int:
    """Print the table. Return the exit code."""
    known = PARSER.parse_args(arguments)

    from assayline.spec.named import find_benchmark, list_benchmarks

    wanted = [find_benchmark(name).name for name in known.names]
    found = [benchmark for benchmark in list_benchmarks() if not wanted or benchmark.name in wanted]
    print_table(tabulate("Benchmarks", COLUMNS if wanted else COLUMNS[:4], found))
    return 0


COLUMNS = (
    Column("name", attrgetter("name"), show_name),
    Column("measures", attrgetter("measures")),
    Column("prompts", attrgetter("prompts"), show_value),
    Column("data", attrgetter("data")),
    Column("license", attrgetter("license")),
    Column("revision", lambda benchmark: benchmark.release or (benchmark.revision or "")[:12] or None),
    Column("digest", attrgetter("digest")),
)

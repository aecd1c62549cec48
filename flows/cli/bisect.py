"""The command line of `bisect`: a dry run, the table of candidates, and the exit code."""

import argparse
from pathlib import Path
from typing import Any

from assayline.errors import SpecError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import parse_words, print_table, print_text

EPILOG = """GOOD BAD: which of the fields in which two specs differ did it? Fields of the method (prompts, chat,
scorers, reasoning, tokenizer) are named and kept as in GOOD. SPEC --over FIELD=FILE: since which value of an ordered
list, one a line, the good one first? Override any field of both: --prompts.limit 200 (docs/guides/bisecting.md).

Exit codes: 0 the cause is found, 2 spec, field or option, 3 prompts, 4 not decided, or the model cannot be read,
5 engine, 6 database or files, 7 an end did not complete, 8 the ends cannot be compared."""
PARSER = make_parser("bisect", EPILOG, "%(prog)s GOOD (BAD | --over FIELD=FILE) [--metric NAME] [--FIELD VALUE ...]")
PARSER.add_argument("good", metavar="GOOD", help="the spec that is good, or the one whose field --over varies")
PARSER.add_argument("--over", metavar="FIELD=FILE", help="a field, and the file of its values in order, one a line")
PARSER.add_argument(
    "--metric", metavar="NAME", help="kl, accuracy or a metric of speed (default: the first of these that differs)"
)
PARSER.add_argument("--confidence", type=float, default=0.95, metavar="P", help="to name a cause (default: 0.95)")
PARSER.add_argument("--max-runs", type=int, metavar="N", help="runs by the metric (default: three a step)")
PARSER.add_argument("--fresh", action="store_true", help="start a new bisection even if one is unfinished")
PARSER.add_argument("--dry-run", action="store_true", help="check and list what would be bisected")


def run(arguments: list[str]) -> int:
    """Run the bisection that the command line describes and print its table. Return the exit code."""
    known, rest = PARSER.parse_known_args(arguments)

    from assayline.files import check_data_folder
    from assayline.settings import load_settings

    settings = load_settings()
    check_data_folder(settings.data_dir)
    asked = read_ask(known, rest)
    if known.dry_run:
        from assayline.benchmark.bisection import plan_bisection
        from assayline.flows.cli.dry_run import check_runs

        settings.pass_on_token()
        plan = plan_bisection(**asked)
        lines = [f"One of {len(plan.names)}, by {' or '.join(plan.sensors)} in at most {plan.max_runs} runs:"]
        lines += [f"  {name}" for name in plan.names]
        lines += [f"Kept as in the good spec, as it is the method: {line}" for line in plan.method]
        lines += check_runs([(cell.label, cell.spec) for cell in plan.make_ends({})], settings, False)
        for line in [*lines, "Dry run: nothing was run or stored."]:
            print_text(line)
        return 0
    from assayline.api import operations
    from assayline.flows.cli.terminal import open_terminal
    from assayline.report.document import Column, tabulate
    from assayline.words import show_name, show_share, show_value

    with open_terminal(settings) as front:
        result = operations.bisect(**asked, resume="never" if known.fresh else "auto", front=front)
    shows = {"candidate": show_name, "runs": show_value, result.metric: show_value, "is_bad": show_share}
    columns = [Column(name.replace("_", " "), name, show) for name, show in shows.items()]
    columns.append(Column("skipped because", "skipped"))
    if result.candidates:
        print_table(tabulate("Candidates", columns, result.candidates))
    print_text(result.headline)
    return 0 if result.cause else 4


def read_ask(known: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    """Return the arguments of the operation. Raises SpecError."""
    from assayline.spec.file import load_spec, parse_value

    bad, fields = parse_words(rest, vars(known))
    over = None
    if known.over is not None:
        field, _, path = known.over.partition("=")
        try:
            lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise SpecError(f"--over {known.over}: {error}. hint: pass FIELD=FILE, such as model=models.txt.") from None
        over = {field: [parse_value(field, line) for line in lines if line and not line.startswith("#")]}
    good, bad_spec = (path and load_spec(path, fields) for path in (known.good, bad))
    options = {"metric": known.metric, "confidence": known.confidence, "max_runs": known.max_runs}
    return {"good": good, "bad": bad_spec, "over": over, **options}

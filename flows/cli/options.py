"""Names of the commands and parsers of their options."""

import argparse
import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from assayline import __version__

CONSOLE_COMMAND = "assayline"
GROUPS = {
    "run": {
        "demo": "Evaluate a tiny model, break it, and see the gate fail.",
        "init": "Create a project: a spec, questions, a scorer, a schedule and settings.",
        "doctor": "Check what this machine can run.",
        "evaluate": "Evaluate a model on a prompt set.",
        "night": "Evaluate a spec, judge the run as one of many nights, and write its history.",
        "benchmark": "Measure configurations of a spec over repeats, or latency under load.",
        "score": "Score a run's stored answers again without generating.",
    },
    "decide": {
        "gate": "Fail if a run is worse than its baseline beyond the spec's limits.",
        "suite": "Run several evaluations and decide by all of them: GO, NO-GO or INCONCLUSIVE.",
        "compare": "Print how two runs differ: scores by prompt, changed answers, speed and cost.",
        "reread": "Let an engine read the stored answers of another one, and compare their probabilities.",
        "bisect": "Find which candidate of a list, or which field of two specs, changed answers or speed.",
        "noise": "Judge a limit by past values: false alarms, the drop that it finds, and what it needs.",
        "baseline": "Pin runs as baselines.",
    },
    "look": {
        "view": "Show runs and their answers in a browser, compare two runs, and label answers.",
        "report": "Write the report of a run, benchmark, history or leaderboard: report.html and report.md.",
        "list runs": "List runs, newest first: id, model, state, accuracy, speed and age.",
        "list baselines": "List pinned baselines, or all pins of one name.",
        "list benchmarks": "List named benchmarks, such as @gsm8k.",
    },
    "exchange": {
        "import": "Import result files of other tools as runs.",
        "verify": "Check the numbers that result files state against their rows.",
        "export": "Export a run in the format of another tool.",
        "db export": "Export the tables of runs as Parquet files.",
    },
    "maintain": {
        "rename": "Rename the model, task or machine of an imported run.",
        "tag": "Add tags and a note to a run, or remove them.",
        "delete": "Delete runs, benchmarks and suites.",
        "db rebuild": "Rebuild runs in the database from their manifests and part files.",
        "notify": "Send messages of failed nights and suites: create automations on Prefect's server.",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
"""Summary of each command, in the order of `--help`."""
COMMON_CODES = """\
Exit codes of all commands: 10 Prefect's API is unreachable, 11 unexpected error, 14 a home folder or a
proxy prevents it, 130 and 143 cancelled, 141 the output was closed, for example by `head`. Pages of docs/
are in the repository."""


SHORT = {"history": ("report", "--history"), "leaderboard": ("report", "--leaderboard")}
"""Words of their own, and what they stand for."""


def find_command(words: list[str], names: Collection[str] = COMMANDS) -> str | None:
    """Return the name, of one word or two, that words begin with; None for an unknown one."""
    return next((name for size in (2, 1) if (name := " ".join(words[:size])) in names), None)


def import_command(name: str) -> Any:
    """Import the module of a command."""
    return importlib.import_module(f"assayline.flows.cli.{name.replace(' ', '_')}")


def make_front_parser(group: str = "") -> argparse.ArgumentParser:
    """Make the parser of `assayline` itself. It takes the command only; each command parses its own options.

    `group`: the word that the listed commands begin with.
    """
    names = [name for name in COMMANDS if name.startswith(f"{group} ".lstrip())]
    width = max(map(len, names))
    listed = []
    for title, commands in GROUPS.items():
        own = [name for name in commands if name in names]
        listed += [f"  {title}:"] if own and not group else []
        listed += [f"    {name:{width}}  {COMMANDS[name]}" for name in own]
    parser = _make_raw_parser(
        CONSOLE_COMMAND,
        "%(prog)s COMMAND ...",
        "Evaluate and benchmark language models on your own GPUs.",
        "commands:\n"
        + "\n".join(listed)
        + "\n\n`%(prog)s COMMAND --help` prints the options and exit codes of a command.\n"
        "`history NAME` and `leaderboard` are short for `report --history NAME` and `report --leaderboard`.\n"
        'Completion in bash or zsh: `eval "$(%(prog)s --completion bash)"`; other shells: docs/guides/installation.md.'
        f"\n{COMMON_CODES}",
    )
    parser.add_argument("command", metavar="COMMAND", help="one of the commands below")
    parser.add_argument("--version", action="version", version=f"{CONSOLE_COMMAND} {__version__}")
    return parser


def make_parser(command: str, epilog: str, usage: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of a command. `%(prog)s` in its texts is `assayline COMMAND`.

    SPEC and spec fields are not in it, as they may stand anywhere among the options.
    """
    return _make_raw_parser(f"{CONSOLE_COMMAND} {command}", usage, COMMANDS[command], epilog)


def add_tags(parser: argparse.ArgumentParser) -> None:
    """Add `--tag`."""
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="tag the run; may be repeated")


def add_dry_run(parser: argparse.ArgumentParser, summary: str) -> None:
    """Add `--dry-run [engine]`, which `parse_with_dry_run` parses."""
    parser.add_argument(
        "--dry-run",
        nargs="?",
        const="plain",
        metavar="engine",
        help=f"{summary}; `engine`: let vLLM check engine.args too, without loading the model",
    )


def parse_with_dry_run(parser: argparse.ArgumentParser, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the known options and the other words. `dry_run` is None, plain or engine; SPEC may follow the option."""
    known, rest = parser.parse_known_args(words)
    if known.dry_run not in (None, "plain", "engine"):
        rest, known.dry_run = [known.dry_run, *rest], "plain"
    return known, rest


def write_completion(shell: str) -> str:
    """Return a script that completes commands, their options and choices, and paths in a shell that shtab supports."""
    import shtab

    front = _make_raw_parser(CONSOLE_COMMAND, None, "", "")
    front.add_argument("--version", action="store_true")
    front.add_argument("--completion", choices=shtab.SUPPORTED_SHELLS)
    groups = {"": front.add_subparsers()}
    for name, summary in COMMANDS.items():
        own: argparse.ArgumentParser = import_command(name).PARSER
        group, _, last = name.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group, help=group).add_subparsers()
        parser = groups[group].add_parser(last, help=summary, parents=[own], add_help=False)
        if own.usage and all(action.option_strings for action in own._actions):  # it takes a SPEC
            parser.add_argument("spec", nargs="?", type=Path, help="YAML file")
        for action in parser._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(front, shell)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        head, _, unknown = message.partition("unrecognized arguments: ")
        if unknown.startswith("--") and not head:
            from assayline.words import nearest

            message += f"; {nearest(unknown.split()[0].split('=')[0], [*self._option_string_actions])}"
        super().error(message)


def _make_raw_parser(prog: str, usage: str | None, description: str, epilog: str) -> argparse.ArgumentParser:
    return _Parser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

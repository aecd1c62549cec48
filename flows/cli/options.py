"""How commands are called: their names, and the parsers of their options."""

import argparse

from assayline import __version__

CONSOLE_COMMAND = "assayline"
COMMANDS = {
    "init": "Create a project: a spec, questions, a scorer, a schedule and settings.",
    "doctor": "Check what this machine can run.",
    "evaluate": "Evaluate a model on a prompt set.",
    "benchmark": "Measure configurations of a spec over repeats, or one under every load.",
    "gate": "Fail when a run is worse than its baseline, beyond its limits.",
    "runs": "List runs: id, model, state, accuracy, speed and age, the newest first.",
    "tasks": "List the tasks of lm-evaluation-harness.",
    "score": "Score a finished run's stored answers again. Nothing is generated.",
    "report": "Write the report of a run, a benchmark, a history or a leaderboard: report.html and report.md.",
    "export": "Write a run's answers in the format of other tools, or runs as Parquet tables.",
    "baseline": "Pin runs as baselines.",
    "rebuild": "Load runs anew into the database, from their manifests and part files.",
    "mirror": "Copy to the mirror the files of runs that it lacks.",
    "restore": "Bring a run back from the mirror; without a run, list the runs in it.",
    "verify": "Compute stored metrics again and compare, for a sample of runs or all.",
}
"""What each does, in the order in which a person meets them."""

COMMON_CODES = """\
Of any command: 10 Prefect's API cannot be reached, 11 an unexpected error, 130 and 143 interrupted,
141 the output was closed, as by `head`."""


def make_front_parser() -> argparse.ArgumentParser:
    """The parser of `assayline` itself: it takes the command alone, whose options are the command's own."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {line}" for name, line in COMMANDS.items())
    parser = _make_raw_parser(
        CONSOLE_COMMAND,
        "%(prog)s COMMAND ...",
        "How accurate, how fast and how expensive is a language model, and did it get worse?",
        f"commands:\n{listed}\n\n`%(prog)s COMMAND --help` has the options and exit codes of a command.\n"
        'Completion in bash or zsh: `eval "$(%(prog)s --completion bash)"`; in fish: '
        "`%(prog)s --completion fish | source`.",
    )
    parser.add_argument("command", metavar="COMMAND", help="one of the commands below")
    parser.add_argument("--version", action="version", version=f"{CONSOLE_COMMAND} {__version__}")
    return parser


def make_parser(command: str, epilog: str, usage: str | None = None) -> argparse.ArgumentParser:
    """The parser of a command. `%(prog)s` in its texts is `assayline COMMAND`."""
    return _make_raw_parser(f"{CONSOLE_COMMAND} {command}", usage, COMMANDS[command], f"{epilog}\n{COMMON_CODES}")


def _make_raw_parser(prog: str, usage: str | None, description: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

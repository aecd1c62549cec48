"""The console command `assayline COMMAND …`.

A command is a module of this package with a function `run`, which takes the arguments and returns the exit code;
`list runs` is the module list_runs.
Imports are lazy: `--help` imports almost nothing, and a dry run imports neither Prefect nor an engine.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

from assayline.errors import AssaylineError, MachineError
from assayline.flows.cli.options import (
    COMMANDS,
    SHORT,
    find_command,
    import_command,
    make_front_parser,
    write_completion,
)
from assayline.flows.cli.process import Terminated, leave_after

SOCKS = (
    "The proxy of ALL_PROXY or HTTPS_PROXY is a SOCKS proxy, which needs the package socksio. hint: run `pip install "
    "socksio`, or unset the variable for this command."
)


def main() -> NoReturn:
    """Run the console command `assayline` and exit the process."""
    leave_after(lambda: run_words(sys.argv[1:]))


def run_words(words: list[str]) -> int:
    """Run the command that `words` name and return its exit code. An unknown command exits with code 2."""
    parser = make_front_parser()
    if words[:1] == ["--completion"]:
        import shtab

        if len(words) != 2 or words[1] not in shtab.SUPPORTED_SHELLS:
            parser.error(f"--completion needs a shell. hint: pass one of {', '.join(shtab.SUPPORTED_SHELLS)}.")
        print(write_completion(words[1]))
        return 0
    if not words:
        parser.print_help()
        return 2
    first = parser.parse_args(words[:1]).command
    short = SHORT.get(first, (first,))
    words = [*(short[:1] if {"-h", "--help"} & set(words) else short), *words[1:]]
    if name := find_command(words):
        return run(name, words[len(name.split()) :])
    if any(known.startswith(f"{first} ") for known in COMMANDS):
        parser = make_front_parser(first)
        if words[1:2] in ([], ["-h"], ["--help"]):
            parser.print_help()
            return 0 if words[1:] else 2
        first = " ".join(words[:2])
    from assayline.words import nearest

    return parser.error(f"unknown command {first!r}: {nearest(first, list(COMMANDS))}")


def run(name: str, arguments: list[str]) -> int:
    """Run a command and return its exit code.

    An AssaylineError is printed with its notes and returns its own exit code; any other exception is raised.
    """
    try:
        if not {"-h", "--help"} & set(arguments):
            _warn_of_unknown_variables()
        code: int = import_command(name).run(arguments)
        return code
    except AssaylineError as error:
        _say(f"error: {error}", error)
        return error.exit_code
    except ImportError as error:
        if "socksio" not in str(error):
            raise
        _say(f"error: {SOCKS}", error)
        return MachineError.exit_code
    except KeyboardInterrupt as interrupt:
        _say("Cancelled. Finished results are stored.", interrupt)
        return 143 if isinstance(interrupt, Terminated) else 130


def _warn_of_unknown_variables() -> None:
    if any(name.upper().startswith("ASSAYLINE_") for name in os.environ) or Path(".env").exists():
        from assayline.settings import list_unknown_variables

        for sentence in list_unknown_variables():
            print(f"warning: {sentence}", file=sys.stderr)


def _say(sentence: str, error: BaseException) -> None:
    from assayline.words import make_visible

    print(make_visible("\n".join([sentence, *getattr(error, "__notes__", [])])), file=sys.stderr)

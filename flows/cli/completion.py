"""Completion in shells: `assayline --completion bash|zsh|fish` prints a script with commands, options and choices.

The options are those of the commands' own parsers, which are built as for `--help`. zsh reads the script for bash.
"""

import argparse
import importlib
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

from assayline.flows.cli.options import COMMANDS, CONSOLE_COMMAND

SHELLS = ("bash", "zsh", "fish")
Actions = Sequence[argparse.Action]


def write_script(shell: str) -> str:
    """The script of a shell, as `eval` and `source` take it."""
    options = {command: list_options(command) for command in COMMANDS}
    return "\n".join(_write_fish(options) if shell == "fish" else _write_bash(options, shell)) + "\n"


class _Built(Exception):
    """Raised in place of parsing."""


def list_options(command: str) -> list[argparse.Action]:
    """The options of a command's parser. The command stops before it parses."""
    parsers: list[argparse.ArgumentParser] = []

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        parsers.append(parser)
        raise _Built

    module = importlib.import_module(f"assayline.flows.cli.{command}")
    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop):
        try:
            module.run([])
        except _Built:
            return [action for action in parsers[0]._actions if action.help != argparse.SUPPRESS]
    raise AssertionError(f"{command} parses no options")


def _write_bash(options: Mapping[str, Actions], shell: str) -> Iterator[str]:
    if shell == "zsh":
        yield "autoload -U +X compinit && compinit"
        yield "autoload -U +X bashcompinit && bashcompinit"
    yield f"_{CONSOLE_COMMAND}() {{"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield "    COMPREPLY=()"
    yield '    case "$COMP_CWORD:${COMP_WORDS[1]} $before" in'
    yield f'        1:*) words="{" ".join(COMMANDS)} --help --version --completion" ;;'
    yield f'        2:"--completion --completion") words="{" ".join(SHELLS)}" ;;'
    for command, actions in options.items():
        for action in actions:
            if action.choices and action.option_strings:
                named = "|".join(f'*:"{command} {option}"' for option in action.option_strings)
                yield f'        {named}) words="{" ".join(map(str, action.choices))}" ;;'
        names = [option for action in actions for option in action.option_strings if option.startswith("--")]
        choices = [str(choice) for action in actions if not action.option_strings for choice in action.choices or ()]
        yield f'        *:"{command} "*) if [[ "$word" == -* ]]; then words="{" ".join(names)}";'
        yield f'            else words="{" ".join(choices)}"; fi ;;'
    yield "    esac"
    yield '    [[ -n "$words" ]] && COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "    return 0"
    yield "}"
    yield f"complete -o default -F _{CONSOLE_COMMAND} {CONSOLE_COMMAND}"


def _write_fish(options: Mapping[str, Actions]) -> Iterator[str]:
    start = f"complete -c {CONSOLE_COMMAND}"
    for command, line in COMMANDS.items():
        yield f"{start} -f -n __fish_use_subcommand -a {command} -d {_quote_fish(line)}"
    yield f"{start} -f -n __fish_use_subcommand -l completion -x -a '{' '.join(SHELLS)}'"
    for command, actions in options.items():
        for action in actions:
            longs = [option[2:] for option in action.option_strings if option.startswith("--")]
            values = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            takes = "" if action.nargs == 0 else values or " -r"
            for name in longs:
                about = _quote_fish(" ".join((action.help or "").split()))
                yield f"{start} -n '__fish_seen_subcommand_from {command}' -l {name}{takes} -d {about}"
            if not action.option_strings and action.choices:
                words = " ".join(map(str, action.choices))
                yield f"{start} -f -n '__fish_seen_subcommand_from {command}' -a '{words}'"


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

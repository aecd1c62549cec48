"""Write cli.md and settings.md in docs/reference/.

`python -m scripts.reference_docs`; a test keeps them current.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.flows.cli.options import COMMANDS, import_command  # noqa: E402
from assayline.settings import PREFIX, Settings  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
MARK = "<!-- Written by `python -m scripts.reference_docs`: do not edit. -->"
OWN_UNITS = {"s": "s", "bytes": "bytes", "rows": "rows"}
"""Unit of a setting by the last word of its name."""


def main() -> None:
    for name, text in render().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def render() -> dict[str, str]:
    """Every page by its file name."""
    pages = {"cli.md": _render_cli(), "settings.md": _render_settings()}
    return {name: "\n".join(lines).rstrip() + "\n" for name, lines in pages.items()}


# Commands


def _render_cli() -> list[str]:
    lines = [
        "# Command line",
        "",
        MARK,
        "",
        "`assayline COMMAND --help` prints what this page has. A section lists the exit codes of its command;",
        "[exit-codes.md](exit-codes.md) has those of every command.",
        "",
        "A field of a spec may be given as `--FIELD VALUE` or `--FIELD=VALUE`; [spec.md](spec.md) has all fields.",
        "",
        "| command | purpose |",
        "|---|---|",
        *(
            f"| [`{name}`](#assayline-{name.replace(' ', '-')}) | {_cell(purpose)} |"
            for name, purpose in COMMANDS.items()
        ),
        "",
    ]
    for name in COMMANDS:
        lines += [f"## assayline {name}", "", *_describe_command(import_command(name).PARSER)]
    return lines


def _describe_command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (parser.description or "", "", *_show_usage(parser), *_list_arguments(parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            purposes = {choice.dest: choice.help for choice in action._choices_actions}
            for name, sub in action.choices.items():
                yield from (
                    f"### {sub.prog}",
                    "",
                    _end_sentence(purposes[name] or ""),
                    "",
                    *_show_usage(sub),
                    *_list_arguments(sub),
                )
    notes, _, codes = (parser.epilog or "").partition("Exit codes:")
    yield from _show_notes(notes % {"prog": parser.prog})
    yield from ("Exit codes:", "")
    for code, meaning in re.findall(r"(\d+) (.*?)(?=,\s+\d+ |\.?\s*$)", " ".join(codes.split())):
        yield f"- `{code}`: {meaning}"
    yield ""


def _end_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _show_usage(parser: argparse.ArgumentParser) -> list[str]:
    words = " ".join(parser.format_usage().split()).removeprefix("usage: ").replace("[-h] ", "")
    wrapped = textwrap.wrap(words, 96, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return ["```text", *wrapped, "```", ""]


def _list_arguments(parser: argparse.ArgumentParser) -> list[str]:
    """A table of the arguments that have a help text."""
    rows = [
        f"| {_name_argument(action)} | {_cell(_read_help(parser, action))} |"
        for action in parser._actions
        if action.help and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]
    return ["| argument | meaning |", "|---|---|", *rows, ""] if rows else []


def _name_argument(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or _list_choices(action) or action.dest.upper())
    if not action.option_strings:
        return f"`{value}`"
    value = f"[{value}]" if action.nargs == "?" else value
    return ", ".join(f"`{option} {value}`".replace(" `", "`") for option in action.option_strings).replace("|", "\\|")


def _list_choices(action: argparse.Action) -> str:
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""


def _read_help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values: dict[str, Any] = {**vars(action), "prog": parser.prog}
    return (action.help or "") % values


def _show_notes(text: str) -> Iterator[str]:
    """Paragraphs as they are, with links to pages; indented lines as code."""
    for block in re.findall(r"(?:^ .*\n?)+|(?:^[^ \n].*\n?)+", text, flags=re.MULTILINE):
        if block.startswith(" "):
            yield from ("```text", *textwrap.dedent(block).rstrip().splitlines(), "```", "")
        else:
            marked = _mark_options(" ".join(block.split()))
            linked = re.sub(r"docs/([\w/-]+\.md)", _link_page, _escape(marked))
            yield from (*textwrap.wrap(linked, 110, break_long_words=False, break_on_hyphens=False), "")


OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w(?: (?:[\d.]*\d|'[^']*'|required|sweep)(?!\w))?")
"""An option in a text, with its value if that is a number, quoted or a known word."""


def _mark_options(text: str) -> str:
    return _outside_code(text, lambda part: OPTION.sub(lambda found: f"`{found[0]}`", part))


def _link_page(found: re.Match[str]) -> str:
    """A link to a page of docs/, from docs/reference/."""
    page = found[1]
    return f"[{Path(page).name}]({page.removeprefix('reference/') if page.startswith('reference/') else '../' + page})"


# Settings


def _render_settings() -> list[str]:
    rows = []
    for name, field in Settings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}"
        default = "–" if field.default is None else f"`{str(field.default).lower()}`"
        default = f"`{field.default:g}`" if isinstance(field.default, float) else default
        if name.endswith("_bytes") and field.default:
            default += f" ({field.default / 2**20:g} MiB)"
        rows.append(f"| `{variable}` | {default} | {_name_unit(name, field)} | {_cell(field.description or '')} |")
    return [
        "# Settings",
        "",
        MARK,
        "",
        "A setting belongs to the machine; the [spec](spec.md) has the fields of an evaluation. Set a setting as an",
        "environment variable, or in a file `.env` in the working folder. An environment variable wins over `.env`.",
        "[.env.example](../../.env.example) has every setting to copy. An unknown variable that begins with",
        "`ASSAYLINE_` is reported and ignored.",
        "",
        "```bash",
        "ASSAYLINE_DATA_DIR=/data/evaluations assayline list runs",
        "```",
        "",
        "| variable | default | unit | meaning |",
        "|---|---|---|---|",
        *rows,
    ]


def _name_unit(name: str, field: Any) -> str:
    if unit := OWN_UNITS.get(name.rpartition("_")[2]):
        return unit
    if isinstance(field.default, bool):
        return "true or false"
    if "Path" in str(field.annotation):
        return "path"
    return {"price": "JSON"}.get(name, "text")


def _escape(text: str) -> str:
    """Text outside code, in which nothing is a tag or emphasis. Code in backticks stays."""
    return _outside_code(text, lambda part: re.sub(r"([<>*_\[\]])", r"\\\1", part))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """A text whose parts outside backticks are changed."""
    return "".join(part if part.startswith("`") else change(part) for part in re.split(r"(`[^`]*`)", text))


def _cell(text: str) -> str:
    return _escape(" ".join(text.split())).replace("|", "\\|")


if __name__ == "__main__":
    main()

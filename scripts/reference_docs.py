"""Write cli.md, settings.md, exit-codes.md and error-kinds.md in docs/reference/.

`python -m scripts.reference_docs`; a test keeps them current.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.comparison.gate import GateFailedError  # noqa: E402
from assayline.errors import AssaylineError, Kind  # noqa: E402
from assayline.flows.cli.options import COMMANDS, COMMON_CODES  # noqa: E402
from assayline.settings import PREFIX, Settings  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
MARK = "<!-- Written by `python -m scripts.reference_docs`: do not edit. -->"
OWN_UNITS = {"s": "s", "bytes": "bytes", "rows": "rows"}
"""Unit of a setting by the last word of its name."""


class Code(NamedTuple):
    """An exit code: when a command ends with it, and what the user can do."""

    meaning: str
    action: str


EXIT_CODES = {
    0: Code("The command did what it was asked to do.", "–"),
    1: Code(
        "`assayline gate`, and flows with a gate: a limit fails. `assayline suite`: NO-GO.",
        "Read the table that the command printed.",
    ),
    2: Code("The spec, a setting or an argument is invalid.", "Correct what the message names."),
    3: Code("The prompt set cannot be read or rendered.", "Correct the file, column or template that it names."),
    4: Code(
        "The model, its tokenizer or its chat template cannot be read.",
        "Check `model`, the network, and `ASSAYLINE_HF_TOKEN` for a gated model.",
    ),
    5: Code(
        "An engine did not start or died for good, a device is taken, or a server cannot be used.",
        "Read the message and the engine's log in `data/runs/RUN_ID/logs`; then give the same command again.",
    ),
    6: Code(
        "The database or a part file cannot be read or written.",
        "If another process holds the database, wait for it or raise `ASSAYLINE_DATABASE_WAIT_S`. If the file is "
        "damaged, `assayline rebuild --all --set-aside` makes it again.",
    ),
    7: Code(
        "A run failed: requests without an answer, or more error rows than `max_error_fraction` allows. "
        "`assayline benchmark`: a configuration did not complete. `assayline suite`: a run did not.",
        "See the run's errors by kind ([error-kinds.md](error-kinds.md)).",
    ),
    8: Code(
        "Two runs cannot be compared: one is not completed, their prompts differ, or a scorer is missing.",
        "Name another baseline, or score the run again with `assayline score`.",
    ),
    9: Code("Every row is an error row, so that there is nothing to send.", "See the message for the rows' errors."),
    10: Code(
        "Prefect's API cannot be reached.",
        "Start the server that `PREFECT_API_URL` names, or unset the variable: the command then needs no server.",
    ),
    11: Code("An unexpected error: a defect of assayline.", "Report it with the traceback."),
    12: Code(
        "A judge among the scorers agrees less with the labels than its `min_kappa`. Answers and scores are stored.",
        "Read the disagreements in the report; then improve the rubric or choose another judge.",
    ),
    13: Code(
        "`assayline gate --detailed-exit-code`, and `assayline suite`: no limit fails, and one is inconclusive.",
        "Read the table that the command printed. Ask more prompts, or raise the limit.",
    ),
    130: Code("Interrupted by Ctrl-C.", "Give the same command again: it resumes an unfinished run."),
    141: Code("The reader of the output closed it, as `head` does.", "–"),
    143: Code("Ended by SIGTERM.", "Give the same command again: it resumes an unfinished run."),
}


class ErrorKind(NamedTuple):
    """A value of `request.error_kind`."""

    name: str
    when: str
    retries: str
    action: str


SERVER_RETRIES = "up to `engine.server.retries` times, unless a token has arrived"
ERROR_KINDS = {
    "Rows that cannot become requests": [
        ErrorKind("unreadable_row", "The row is not in its file's format.", "no", "Correct the row."),
        ErrorKind(
            "row_error",
            "A value in the row cannot be used: messages, options, sampling, or a field of a batch file.",
            "no",
            "Correct the value or `prompts.columns`.",
        ),
        ErrorKind(
            "template_error",
            "The prompt template or the chat template fails on this row.",
            "no",
            "Try the template with `--dry-run`.",
        ),
        ErrorKind(
            "empty_prompt",
            "The prompt has no tokens, or none before the options to choose from.",
            "no",
            "Check the column or template that the prompt comes from.",
        ),
        ErrorKind(
            "prompt_too_long",
            "The prompt, with its media, leaves no room for an answer in the context.",
            "no",
            "Shorten it, raise `engine.args.max_model_len`, or lower `prompts.media.max_pixels`.",
        ),
        ErrorKind(
            "media_error",
            "An image, audio clip or video cannot be read, fetched or sent to this model.",
            "no",
            "Correct the path or file that the message names.",
        ),
    ],
    "Requests that an engine does not answer": [
        ErrorKind(
            "sampling_error",
            "The row's own sampling has a parameter that the engine or server does not take.",
            "no",
            "Correct the row's sampling column.",
        ),
        ErrorKind(
            "rejected_by_engine", "vLLM refuses the request; the message is vLLM's.", "no", "Follow vLLM's message."
        ),
        ErrorKind(
            "engine_gave_up",
            "vLLM's core failed on this request alone.",
            "once, with `engine.backend: async`, for a request with media and no token yet",
            "Read the engine's log in `data/runs/RUN_ID/logs`.",
        ),
        ErrorKind(
            "killed_engine",
            "The request was alone in an engine that died.",
            "yes, alone, before it becomes an error row",
            "Look at the request; see [recovery](../concepts/recovery.md).",
        ),
        ErrorKind(
            "killed_worker",
            "The request was in flight when three workers were lost, alone at the third.",
            "yes, alone the last time",
            "Look at the request; see [recovery](../concepts/recovery.md).",
        ),
    ],
    "Requests that a server does not answer": [
        ErrorKind(
            "rejected_by_server",
            "HTTP 4xx, or an error event of that kind; the message is the server's.",
            "no",
            "Follow the server's message.",
        ),
        ErrorKind(
            "server_overloaded",
            "HTTP 429 or 503.",
            f"{SERVER_RETRIES}; no sooner than Retry-After asks",
            "Lower the load or raise `engine.server.retries`.",
        ),
        ErrorKind(
            "server_unreachable",
            "No connection, or one that ended before a token arrived.",
            f"{SERVER_RETRIES}; not after a certificate error",
            "Check `engine.server.url` and the server.",
        ),
        ErrorKind(
            "server_error",
            "HTTP 5xx, or an error event in the stream.",
            "after HTTP 502 only",
            "Read the server's log.",
        ),
        ErrorKind(
            "stream_cut",
            "The stream ended midway; the message has the number of tokens.",
            "no",
            "Check the server and proxies in between.",
        ),
        ErrorKind(
            "malformed_stream",
            "The answer is not an event stream, not JSON, not a completion, or has no `finish_reason`.",
            "no",
            "Check that the URL is of an OpenAI-compatible server.",
        ),
        ErrorKind(
            "timed_out",
            "No complete answer within `engine.server.timeout_s`, retries included.",
            "no",
            "Raise `engine.server.timeout_s` or lower the load.",
        ),
    ],
    "Requests that were not sent": [
        ErrorKind(
            "not_sent",
            "The load ended before the request's turn. It is not an error: `request.status` is `unsent`.",
            "no",
            "Raise the load's limits if you need these answers.",
        ),
        ErrorKind(
            "earlier_turn",
            "An earlier turn of the conversation has no answer.",
            "no",
            "See the error of the earlier turn.",
        ),
    ],
}
TEST_KINDS = frozenset({"fake_error"})
"""Kinds that only the engine for tests produces."""


class EngineCause(NamedTuple):
    """A kind of engine death: when, what the next engine gets, and what the user can do."""

    when: str
    reaction: str
    action: str


LESS = "half the window and `max_num_seqs`, then fewer batched tokens"
ENGINE_CAUSES = {
    Kind.DEVICE_OOM: EngineCause(
        "An allocation on the device fails while generating.",
        f"{LESS}; 0.05 less `gpu_memory_utilization`",
        "Give the spec the sizes of the last engine.",
    ),
    Kind.HOST_OOM: EngineCause(
        "An allocation in main memory fails, or the kernel kills the process for memory, while generating.",
        LESS,
        "Give the spec the sizes of the last engine, or the machine more memory.",
    ),
    Kind.MEMORY_TAKEN: EngineCause(
        "At start, less memory is free than the requested share.",
        "the same size once the memory is free, else what is free",
        "End the process that the log names, or lower `gpu_memory_utilization`.",
    ),
    Kind.CACHE_TOO_LARGE: EngineCause(
        "At start, `kv_cache_memory_bytes` is not free.", "what is free", "Lower `kv_cache_memory_bytes`."
    ),
    Kind.NO_CACHE_ROOM: EngineCause(
        "At start, weights and activations leave no room for the KV cache.",
        "0.05 more utilization, else fewer batched tokens",
        "Raise `gpu_memory_utilization` or lower `max_num_batched_tokens`.",
    ),
    Kind.LENGTH_TOO_LONG: EngineCause(
        "At start, the KV cache has no room for one request of `max_model_len` tokens.",
        "0.05 more utilization, else the length that vLLM reports as fitting",
        "Set `max_model_len`.",
    ),
    Kind.START_OOM: EngineCause(
        "An allocation fails while profiling, capturing graphs or warming up.",
        "a smaller KV cache if its size is given, then half of `max_num_seqs` and `max_num_batched_tokens`, or less "
        "utilization",
        "Lower these sizes in the spec.",
    ),
    Kind.MODEL_TOO_LARGE: EngineCause(
        "The weights do not fit.",
        "none: the run fails; after answers, the same start up to three times",
        "Use more devices (`tensor_parallel_size`), a quantized model or a larger device.",
    ),
    Kind.PROFILE_DISTURBED: EngineCause(
        "Another process freed memory while vLLM was measuring it.", "the same size", "Nothing."
    ),
    Kind.KILLED: EngineCause(
        "SIGKILL, with no sign that memory was the reason.",
        "the same size; at a second death, the requests in flight are searched for the cause",
        "Find out who sends the signal, such as a batch system's limit.",
    ),
    Kind.STALLED: EngineCause(
        "No step or answer for `ASSAYLINE_ENGINE_STALL_TIMEOUT_S`.",
        "the same size; at a second death, the requests in flight are searched for the cause",
        "Read the engine's log; raise the setting if a step takes that long.",
    ),
    Kind.START_FAILED: EngineCause(
        "The engine did not start, for a reason other than memory: a wrong argument, a busy device.",
        "none: the run fails with vLLM's message; after answers, the same start up to three times",
        "Follow vLLM's message.",
    ),
    Kind.OTHER: EngineCause(
        "A crash of another kind.",
        "the same size; at a second death, the requests in flight are searched for the cause",
        "Read the engine's log.",
    ),
}


def main() -> None:
    for name, text in render().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def render() -> dict[str, str]:
    """Every page by its file name."""
    pages = {
        "cli.md": _render_cli(),
        "settings.md": _render_settings(),
        "exit-codes.md": _render_exit_codes(),
        "error-kinds.md": _render_error_kinds(),
    }
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
        *(f"| [`{name}`](#assayline-{name}) | {_cell(purpose)} |" for name, purpose in COMMANDS.items()),
        "",
    ]
    for name in COMMANDS:
        lines += [f"## assayline {name}", "", *_describe_command(import_module(f"assayline.flows.cli.{name}").PARSER)]
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
    notes, _, codes = (parser.epilog or "").replace(COMMON_CODES, "").partition("Exit codes:")
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
    options = [option for option in action.option_strings if "_" not in option] or action.option_strings
    return ", ".join(f"`{option} {value}`".replace(" `", "`") for option in options).replace("|", "\\|")


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
        "ASSAYLINE_DATA_DIR=/data/evaluations assayline runs",
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


# Errors


def list_exit_codes() -> dict[int, list[str]]:
    """Exit codes and the exceptions that define them, those of `assayline.errors` and the gate's."""
    found: dict[int, list[str]] = {GateFailedError.exit_code: [GateFailedError.__name__]}
    waiting: list[type[AssaylineError]] = [AssaylineError]
    while waiting:
        error = waiting.pop(0)
        waiting += error.__subclasses__()
        if "exit_code" in vars(error) and error.__module__ == AssaylineError.__module__:
            found.setdefault(error.exit_code, []).append(error.__name__)
    return found


def _render_exit_codes() -> list[str]:
    errors = list_exit_codes()
    rows = [
        f"| `{code}` | {_cell(meaning)} | {action} | {', '.join(f'`{name}`' for name in errors.get(code, [])) or '–'} |"
        for code, (meaning, action) in EXIT_CODES.items()
    ]
    return [
        "# Exit codes",
        "",
        MARK,
        "",
        "A command that fails prints its error to stderr and ends with one of these codes. [cli.md](cli.md) has the",
        "codes of each command. From Python, the same cases are exceptions: `GateFailedError` of",
        "`assayline.comparison.gate`, the others of `assayline.errors`.",
        "",
        "| code | meaning | what to do | exception |",
        "|---:|---|---|---|",
        *rows,
    ]


def _render_error_kinds() -> list[str]:
    lines = [
        "# Error kinds",
        "",
        MARK,
        "",
        "A request without a result is an error row. `request.error_kind` and `request.error_message` say why. An",
        "error row counts as an answer: resuming the run does not send it again. A run fails if more of its requests",
        "are error rows than `max_error_fraction` allows.",
        "",
        "```sql",
        "select error_kind, count(*) as requests, any_value(error_message) as example from request",
        "where run_id = 'RUN_ID' and error_kind is not null group by all order by requests desc;",
        "```",
        "",
    ]
    for title, kinds in ERROR_KINDS.items():
        lines += [f"## {title}", "", "| error kind | when | retried | what to do |", "|---|---|---|---|"]
        lines += [f"| `{kind.name}` | {kind.when} | {kind.retries} | {kind.action} |" for kind in kinds]
        lines.append("")
    lines += [
        "## Engines that died",
        "",
        "`engine.failure_kind` has one of these kinds. Unless `engine.recovery.enabled` is false, another engine takes",
        "over the unanswered requests; none of them becomes an error row because of it.",
        "[Recovery](../concepts/recovery.md) has the details.",
        "",
        "| failure kind | when | the next engine gets | what to do |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| `{kind}` | {cause.when} | {cause.reaction} | {cause.action} |" for kind, cause in ENGINE_CAUSES.items()
    ]


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

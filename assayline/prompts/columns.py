"""From a row to a prompt's parts by the spec's columns and template.

Which column means what is the spec's `columns`; a template replaces the messages or prompt column. A row that lacks
what the spec names is a mistake in the spec if it is the first row (the run stops at once), else one bad row.
"""

from collections.abc import Callable
from typing import Any

from assayline.media.fetch import Fetcher
from assayline.media.references import MediaReader, MediaStore
from assayline.prompts.media import MediaPlacement
from assayline.prompts.row import (
    Message,
    Reader,
    Row,
    RowError,
    RowShapeError,
    as_json,
    as_text,
    find_column,
    list_names,
    open_json,
    read_count,
    read_messages,
    without_none,
)
from assayline.prompts.targets import write_target
from assayline.prompts.template import PromptTemplate
from assayline.records import BatchBody, Media, MediaKind, Prompt
from assayline.spec.prompts import Columns, MediaSpec, MessageTemplate


class RowReader(Reader):
    """Read rows by a spec's columns and template."""

    def __init__(
        self,
        columns: Columns,
        template: str | list[MessageTemplate] | None,
        media: MediaSpec | None = None,
        media_store: MediaStore | None = None,
    ) -> None:
        """`media_store` is where media that come inside a row are kept (None: nowhere).

        Raises PromptError for a template that cannot be compiled."""
        self._columns = columns
        media = media or MediaSpec()
        self._media = MediaPlacement(columns, media, MediaReader(media_store or MediaStore(None), Fetcher(media)))
        self._template = None if template is None else PromptTemplate(template)

    def _read(self, row: Row) -> Prompt:
        columns = self._columns
        # Lookups first, then messages: what the row lacks must not hide behind a bad value in another column.
        source_id = _find_optional(row, columns.id, "id")
        sampling = None if columns.sampling is None else find_column(row, columns.sampling, "prompts.columns.sampling")
        metadata = {name: find_column(row, name, "prompts.columns.metadata") for name in columns.metadata}
        if columns.cluster is not None:
            metadata[columns.cluster] = find_column(row, columns.cluster, "prompts.columns.cluster")
        target = _find_optional(row, columns.target, "target")
        options = None if columns.options is None else find_column(row, columns.options, "prompts.columns.options")
        media = self._media.read_columns(row)
        messages, body = self._read_messages(row, media)
        length: dict[str, Any] = {}
        if (column := columns.output_tokens) is not None:
            tokens = read_count(find_column(row, column, "prompts.columns.output_tokens"), column)
            length = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        return Prompt(
            messages=self._media.place(messages, media),
            body=body,
            source_id=as_text(source_id, "The id"),
            target=write_target(target),
            metadata={name: as_json(value, f"Metadata column {name!r}") for name, value in metadata.items()}
            | getattr(row, "origin", {}),
            sampling=_read_sampling(sampling, f"Sampling column {columns.sampling!r}") | length,
            options=None if columns.options is None else _read_options(options, f"Options column {columns.options!r}"),
        )

    def identify(self, row: Row) -> tuple[str | None, str | None]:
        columns = self._columns
        return try_text(row, columns.id, "id"), try_text(row, columns.target, "target", write_target)

    def _read_messages(self, row: Row, media: dict[MediaKind, list[Media]]) -> tuple[list[Message], BatchBody | None]:
        """Return the messages, and what the chat template gets besides them."""
        columns = self._columns
        if self._template is not None:
            return self._template.render(row | self._media.list_variables(row, media) if media else row), None
        if columns.messages or ("messages" in row and not columns.prompt):
            given = _find_optional(row, columns.messages, "messages")
            messages = read_messages(given, lambda part, where: self._media.read_part(part, where, row))
        elif columns.prompt or "prompt" in row:
            messages = _user_message(_find_optional(row, columns.prompt, "prompt"))
        else:
            known = next((text for name, text in FAMILIAR.items() if name in row), NAME_YOURS)
            raise RowShapeError(
                f"It has neither a column `messages` nor a column `prompt`. hint: {known} Columns: {list_names(row)}."
            )
        system = as_text(row.get("system"), "The column system")
        if system and all(message["role"] != "system" for message in messages):
            messages = [{"role": "system", "content": system}, *messages]
        return messages, _read_tools(row.get("tools"))


NAME_YOURS = "name yours in prompts.columns.messages or prompts.columns.prompt, or write prompts.template."
FAMILIAR = {
    "conversations": "set prompts.source.kind to sharegpt.",
    "chosen": "set prompts.columns.messages to chosen, and prompts.turns to first.",
    "doc_id": 'for samples of lm-evaluation-harness, set prompts.template to "{{ arguments.gen_args_0.arg_0 }}".',
    "input_length": "set prompts.source.kind to trace.",
    "Request tokens": "set prompts.source.kind to trace.",
}
"""Hints for formats that a column gives away."""


def _read_tools(value: Any) -> BatchBody | None:
    """Return the variables of the chat template for a column `tools`: a list, or its JSON text."""
    tools = as_json(open_json(value or None, "The column tools"), "The column tools")
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError(f"The column tools holds {tools!r:.80}, expected a list of objects. hint: rename it.")
    return BatchBody(variables={"tools": tools})


def _user_message(prompt: Any) -> list[Message]:
    if isinstance(prompt, (list, dict)):
        raise RowError(
            f"The prompt is {prompt!r:.80}, expected text. hint: name a column of messages in prompts.columns.messages."
        )
    text = as_text(prompt, "The prompt")
    if text is None:
        raise RowError("The prompt is null, expected text.")
    return [{"role": "user", "content": text}]


def _read_sampling(value: Any, where: str) -> dict[str, Any]:
    """Return the overrides by name. None is "not overridden": Parquet cannot leave a key out of one row."""
    if value is None or value == "":
        return {}
    overrides = open_json(value, where)
    if not isinstance(overrides, dict):
        raise RowError(f"{where} holds {overrides!r:.80}, expected an object such as {{max_tokens: 64}}.")
    return without_none(as_json(overrides, where))


def _read_options(value: Any, where: str) -> list[str]:
    """Two or more texts, from a list or from its JSON text, as CSV holds lists. They stay as they are, blanks included.

    Two equal ones are let pass: benchmarks have such rows, and which of the two is right is the scorer's to say.
    """
    value = open_json(value, where)
    if not isinstance(value, list) or len(value) < 2:
        raise RowError(f"{where} holds {value!r:.80}, expected a list of at least two answers.")
    options = [as_text(option, f"{where}, option {number}") for number, option in enumerate(value, start=1)]
    for number, option in enumerate(options, start=1):
        if option is None or not option.strip():
            raise RowError(f"{where}, option {number} is {value[number - 1]!r:.80}, expected an answer.")
    return [option for option in options if option is not None]


def _find_optional(row: Row, named: str | None, default: str) -> Any:
    """Return the value of the column named in the spec, which must exist, or of the default column if present."""
    return row.get(default) if named is None else find_column(row, named, f"prompts.columns.{default}")


def try_text(row: Row, named: str | None, default: str, write: Callable[..., str | None] = as_text) -> str | None:
    """Return the text of a column; None if there is none."""
    try:
        return write(_find_optional(row, named, default), f"The {default}")
    except (RowError, RecursionError):
        return None

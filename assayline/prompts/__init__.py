"""Prompt sets: from where they are to `Prompt`s, one at a time.

    source → rows → selected rows → parts (columns, template) → Prompt with a content id, or BadRow

Nothing is collected, but by a shuffle (see `selection.py`) and a few examples (`few_shot.py`), so a million rows need
the memory of a thousand.
"""

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from assayline.digests import digest_json, digest_text
from assayline.errors import PromptError
from assayline.media.shelf import Shelf
from assayline.prompts.batch import BatchReader
from assayline.prompts.columns import Message, PromptParts, RowReader, check_first
from assayline.prompts.few_shot import FewShot
from assayline.prompts.files import UnreadableRow
from assayline.prompts.media import identify_media, separate_media
from assayline.prompts.occurrences import Occurrences
from assayline.prompts.selection import select_rows
from assayline.prompts.sharegpt import read_answered, read_conversation
from assayline.prompts.sources import read_rows, split_head
from assayline.prompts.synthetic import SyntheticPrompts
from assayline.prompts.traces import TracePrompts, read_trace
from assayline.prompts.turns import cut_first_turn, split_turns
from assayline.prompts.values import RowError
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec
from assayline.spec.sources import (
    FileSource,
    LmEvalSource,
    OpenAiBatchSource,
    ShareGptSource,
    SyntheticSource,
    TraceSource,
)

__all__ = ["BadRow", "RowError", "load_prompts"]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be asked. Its prompt has no messages, and its target if that can be read; its id hashes the row
    as it was."""

    prompt: Prompt
    kind: str
    """unreadable_row: not of its file's format; row_error: a value cannot be used; template_error: the prompt template
    failed."""
    message: str


def load_prompts(spec: PromptSpec, tokenizer: Any = None, shelf: Shelf | None = None) -> Iterator[Prompt | BadRow]:
    """The prompts of a spec, in the order in which they are asked: one Prompt or BadRow per selected row.

    The tokenizer is used by synthetic sources, traces and recorded lengths alone. `shelf` keeps media that come inside
    rows (None: nobody does, and they cannot be sent to an engine). Raises PromptError (or SpecError) at once, before
    anything is iterated, for what concerns the run: no file, no rows, a template that is not Jinja2, a column or
    template variable that the first readable row lacks. While iterating, PromptError for a file that turns out
    to be damaged further on.
    """
    source = spec.source
    assert not isinstance(source, LmEvalSource), "a task writes its requests itself (harness/)"
    if isinstance(source, SyntheticSource):
        numbers = iter(range(source.count))
        return _read_prompts(spec, numbers, SyntheticPrompts(source, tokenizer).read, lambda number: (None, None))
    if isinstance(source, TraceSource):
        read = TracePrompts(source, tokenizer).read
        rows = _check_rows(spec, read_trace(source), partial(check_first, read=read))
        return _read_prompts(spec, rows, read, lambda row: (None, None))
    if isinstance(source, OpenAiBatchSource):
        lines = BatchReader(spec.media, shelf)
        return _read_prompts(spec, _check_rows(spec, read_rows(source), lines.check_first), lines.read, lines.identify)
    reader = RowReader(spec.columns, spec.template, spec.media, shelf)
    if isinstance(source, ShareGptSource):

        def read_talk(row: Any) -> PromptParts:
            if source.max_tokens is None:
                return reader.read(read_conversation(row))
            asked, answer = read_answered(row, "first" if spec.turns == "first" else "given")
            limit = {"max_tokens": _count_tokens(tokenizer, answer)}
            parts = reader.read(asked)
            return replace(parts, sampling=limit | parts.sampling)

        rows = _check_rows(spec, read_rows(FileSource(path=source.path)), partial(check_first, read=read_talk))
        return _read_prompts(spec, rows, read_talk, reader.identify)
    rows = _check_rows(spec, read_rows(source), partial(check_first, read=reader.read))
    few_shot = None if spec.few_shot is None else FewShot(spec, spec.few_shot, shelf)
    return _read_prompts(spec, rows, reader.read, reader.identify, few_shot)


def _count_tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _check_rows(spec: PromptSpec, rows: Iterator[Any], check: Callable[[Any], object]) -> Iterator[Any]:
    """The rows again, the first readable one checked."""
    head, first = split_head(rows)
    if first is None:
        raise PromptError(f"Prompt set {spec.set_name!r} has no rows. Expected at least one: check prompts.source.")
    check(first)
    return chain(head, rows)


def _read_prompts(
    spec: PromptSpec,
    rows: Iterator[Any],
    read: Callable[[Any], PromptParts],
    identify: Callable[[Any], tuple[str | None, str | None]],
    few_shot: FewShot | None = None,
) -> Iterator[Prompt | BadRow]:
    seen = Occurrences()
    for source_row, row in select_rows(rows, spec.limit, spec.shuffle_seed):
        try:
            parts = read(row)
            asked, turn_sizes = _choose_turns(spec, parts.messages)
            messages = few_shot.put_before(asked) if few_shot else asked
        except RowError as error:
            prompt_id = _digest_row(row)
            occurrence = seen.count_before(prompt_id)
            source_id, target = (None, None) if isinstance(row, UnreadableRow) else identify(row)
            prompt = Prompt(
                prompt_id=prompt_id,
                occurrence=occurrence,
                source_row=source_row,
                source_id=source_id,
                messages=[],
                target=target,
            )
            yield BadRow(prompt, error.kind, str(error))
        else:
            prompt_id = _identify(parts, asked, turn_sizes)
            messages, media = separate_media(messages)
            yield Prompt(
                prompt_id=prompt_id,
                occurrence=seen.count_before(prompt_id),
                source_row=source_row,
                source_id=parts.source_id,
                messages=messages,
                target=parts.target,
                metadata=parts.metadata,
                sampling=parts.sampling,
                prompt_token_ids=parts.prompt_token_ids,
                options=parts.options,
                media=media,
                body=parts.body,
                due_offset_s=parts.due_offset_s,
                turn_sizes=turn_sizes,
            )


def _choose_turns(spec: PromptSpec, messages: list[Message]) -> tuple[list[Message], list[int] | None]:
    """The messages that are asked and, where they are asked turn by turn, how many each turn adds."""
    if spec.turns == "given":
        return messages, None
    if spec.turns == "first":
        return cut_first_turn(messages), None
    turns = split_turns(messages)
    return list(chain.from_iterable(turns)), list(map(len, turns))


def _identify(parts: PromptParts, messages: list[Message], turn_sizes: list[int] | None) -> str:
    """What is asked, and what the answer should be. Examples are left out: with five or none, it is one question, and
    runs are compared question by question. A conversation of one turn is the same question, however it is asked."""
    more: dict[str, Any] = {} if parts.options is None else {"options": parts.options}
    if parts.body is not None:
        more["body"] = [parts.body.text, parts.prompt_token_ids, parts.body.variables, parts.body.continues]
    if turn_sizes is not None and len(turn_sizes) > 1:
        more["turn_sizes"] = turn_sizes
    return digest_json({"messages": identify_media(messages), "target": parts.target, **more})


def _digest_row(row: dict[str, Any] | UnreadableRow) -> str:
    if isinstance(row, UnreadableRow):
        return digest_text(row.text)
    try:
        return digest_json({"bad_row": row})
    except (TypeError, ValueError, RecursionError):  # keys of mixed types, a list that contains itself
        return digest_text(reprlib.repr(row))  # of a deep row its surface only: two that differ below may look equal

"""Prompt sets: from where they are to `Prompt`s, one at a time.

    source → rows → selected rows → parts (columns, template) → Prompt with a content id, or BadRow

Nothing is collected, but by a shuffle and a few examples (`few_shot.py`), so a million rows need the memory of a
thousand, and 78 MB for the ids that were there before.
"""

import hashlib
import heapq
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar

from assayline.digests import digest_json, digest_text
from assayline.errors import PromptError
from assayline.media.references import MediaStore
from assayline.prompts.few_shot import FewShot
from assayline.prompts.media import identify_media, separate_media
from assayline.prompts.row import (
    Message,
    Reader,
    Row,
    RowError,
    UnreadableRow,
    cut_first_turn,
    split_turns,
)
from assayline.prompts.sources import open_reader, read_rows
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec

T = TypeVar("T")

HOPELESS_ROWS = 10
"""A file is of another format if this many rows at its beginning are all unreadable."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be asked. Its prompt has no messages, and its target if that can be read; its id hashes the row
    as it was."""

    prompt: Prompt
    kind: str
    """unreadable_row: not of its file's format; row_error: a value cannot be used; template_error: the prompt template
    failed."""
    message: str


def load_prompts(
    spec: PromptSpec,
    tokenizer: Any = None,
    media_store: MediaStore | None = None,
    rows: Iterator[Any] | None = None,
    begin: Callable[[int], None] = lambda source_row: None,
) -> Iterator[Prompt | BadRow]:
    """Yield the prompts of a spec in order: one Prompt or BadRow per selected row.

    The tokenizer is used by synthetic sources, traces and recorded lengths alone. `media_store` keeps media that come
    inside rows (None: nobody does, and they cannot be sent to an engine). `rows` replaces the source, for one that is
    in the database. `begin` gets the number of each row before it is read. Raises PromptError (or SpecError) at once,
    before anything is iterated, for what concerns the run: no file, no rows, a template that is not Jinja2, a column or
    template variable that the first readable row lacks. While iterating, PromptError for a file that turns out to be
    damaged further on.
    """
    reader = open_reader(spec, tokenizer, media_store)
    rows = _check_rows(spec, read_rows(spec.source) if rows is None else rows, reader, begin)
    few_shot = None if spec.few_shot is None else FewShot(spec, spec.few_shot, media_store)
    selected = select_rows(rows, spec.limit, spec.shuffle_seed)
    return _read_prompts(spec, selected, reader, few_shot, begin)


def _check_rows(spec: PromptSpec, rows: Iterator[Any], reader: Reader, begin: Callable[[int], None]) -> Iterator[Any]:
    """Yield the same rows after checking the first readable one."""
    head, first = split_head(rows)
    if first is None:
        raise PromptError(f"Prompt set {spec.set_name!r} has no rows. Expected at least one: check prompts.source.")
    begin(len(head) - 1)
    reader.check_first(first)
    return chain(head, rows)


def split_head(rows: Iterator[Row | UnreadableRow]) -> tuple[list[Row | UnreadableRow], Row | None]:
    """Take rows up to the first readable one. Returns all rows taken, and that one or None.

    Raises PromptError where the first HOPELESS_ROWS, or all that there are, cannot be read.
    """
    head: list[Row | UnreadableRow] = []
    for row in rows:
        head.append(row)
        if not isinstance(row, UnreadableRow):
            return head, row
        if len(head) == HOPELESS_ROWS:
            break
    if head and isinstance(first := head[0], UnreadableRow):
        which = "The only row" if len(head) == 1 else f"Each of the first {len(head)} rows"
        raise PromptError(f"{which} cannot be read. {first.message}")
    return head, None


def select_rows(
    rows: Iterable[T], limit: int | None = None, shuffle_seed: int | None = None
) -> Iterator[tuple[int, T]]:
    """Yield (0-based position in the source, row).

    Without a seed it streams, and reads no further than the limit. With one it reads the whole source before the first
    row comes out, holding `limit` rows in memory, or all rows if there is no limit.
    """
    numbered = enumerate(rows)
    if shuffle_seed is None:
        yield from islice(numbered, limit)
        return
    keyed = ((_shuffle_key(shuffle_seed, number), number, row) for number, row in numbered)
    order = itemgetter(0, 1)
    by_key = sorted(keyed, key=order) if limit is None else heapq.nsmallest(limit, keyed, key=order)
    for _, number, row in by_key:
        yield number, row


def _shuffle_key(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest())


def _read_prompts(
    spec: PromptSpec,
    rows: Iterable[tuple[int, Any]],
    reader: Reader,
    few_shot: FewShot | None,
    begin: Callable[[int], None],
) -> Iterator[Prompt | BadRow]:
    seen: Counter[int] = Counter()
    """64 bits of each prompt's id: of a million different ones, two are taken for one with a chance of 3 in 100
    million, and then one of them has occurrence 1 instead of 0."""
    for source_row, row in rows:
        begin(source_row)
        try:
            if isinstance(row, UnreadableRow):
                raise RowError(row.message, "unreadable_row")
            parts = reader.read(row)
            asked, turn_sizes = _choose_turns(spec, parts)
            messages = few_shot.put_before(asked) if few_shot else asked
        except RowError as error:
            is_readable = not isinstance(row, UnreadableRow)
            source_id, target = reader.identify(row) if is_readable else (None, None)
            prompt_id = _digest_row(row)
            prompt = Prompt(
                prompt_id=prompt_id,
                occurrence=_count(seen, prompt_id),
                source_row=source_row,
                source_id=source_id,
                messages=[],
                target=target,
                metadata=getattr(row, "origin", {}),
            )
            yield BadRow(prompt, error.kind, str(error))
        else:
            prompt_id = _identify(parts, asked, turn_sizes)
            messages, media = separate_media(messages)
            yield replace(
                parts,
                prompt_id=prompt_id,
                occurrence=_count(seen, prompt_id),
                source_row=source_row,
                messages=messages,
                media=media,
                turn_sizes=turn_sizes,
            )


def _count(seen: Counter[int], prompt_id: str) -> int:
    """How often the id was there before."""
    key = int(prompt_id[:16], 16)
    seen[key] += 1
    return seen[key] - 1


def _choose_turns(spec: PromptSpec, parts: Prompt) -> tuple[list[Message], list[int] | None]:
    """Return the messages to send and, if they are sent turn by turn, the number that each turn adds."""
    if spec.turns == "given":
        return parts.messages, None
    if spec.turns == "first":
        return cut_first_turn(parts.messages), None
    if parts.body is not None:
        raise RowError("The row has tools, which cannot be used turn by turn. hint: set prompts.turns to given.")
    turns = split_turns(parts.messages)
    return list(chain.from_iterable(turns)), list(map(len, turns))


def _identify(parts: Prompt, messages: list[Message], turn_sizes: list[int] | None) -> str:
    """Return what identifies a prompt: its question and target.

    Few-shot examples are left out, so that runs with and without them are compared prompt by prompt. A conversation of
    one turn is the same prompt, with or without `prompts.turns`."""
    more: dict[str, Any] = {} if parts.options is None else {"options": parts.options}
    if parts.body is not None:
        more["body"] = [parts.body.text, parts.prompt_token_ids, parts.body.variables, parts.body.continues]
    if turn_sizes is not None and len(turn_sizes) > 1:
        more["turn_sizes"] = turn_sizes
    return digest_json({"messages": identify_media(messages), "target": parts.target, **more})


def _digest_row(row: Row | UnreadableRow) -> str:
    if isinstance(row, UnreadableRow):
        return digest_text(row.text)
    try:
        return digest_json({"bad_row": row})
    except (TypeError, ValueError, RecursionError):  # keys of mixed types, a list that contains itself
        return digest_text(reprlib.repr(row))  # of a deep row its surface only: two that differ below may look equal

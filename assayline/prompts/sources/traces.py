"""Prompts made after a trace of a service: with the recorded lengths, and shared prefixes where the trace has them.

A trace has a time and two lengths per request. Mooncake's traces also have `hash_ids`: a number for each block of
`block_tokens`, which is the same for the same text after the same text. The engine gets token ids. Guarantees:

- A prompt has exactly the recorded number of tokens, and the recorded number is generated.
- The tokens of a block depend only on its number and the seed, so two prompts share blocks as far as their numbers
  match, and nothing needs to be stored. An incomplete last block is the beginning of a complete one. Tokens without a
  number depend on the row.
- Two numbers, or two rows, are drawn independently: with at least 64 ids to draw from, sixteen tokens (the block of a
  prefix cache) are equal once in 10^28.
- If the tokenizer has `LEAST_WORDS` words, only these are used, and the text encodes back to the same ids, as in
  `synthetic.py`.

Mooncake: https://arxiv.org/abs/2407.00079, section 4. Azure: the columns of AzureLLMInferenceTrace, 2023 and 2024.
BurstGPT: https://arxiv.org/abs/2401.17644.
"""

import random
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from assayline.prompts.row import (
    UNITS_PER_S,
    Reader,
    Row,
    RowError,
    UnreadableRow,
    find_column,
    read_count,
    read_stamp,
)
from assayline.prompts.sources.files import read_files
from assayline.prompts.sources.synthetic import choose_ids
from assayline.records import Prompt
from assayline.spec.load import Trace
from assayline.spec.prompts import TraceSource

LEAST_WORDS = 64
HASH_IDS = "hash_ids"
NAMED_BY = "the trace's format"


class Format(NamedTuple):
    """Columns of a trace, and the unit of its stamps."""

    prompt_tokens: str
    output_tokens: str
    stamp: str
    unit: Literal["s", "ms", "date"]


FORMATS = (
    Format("input_length", "output_length", "timestamp", "ms"),
    Format("ContextTokens", "GeneratedTokens", "TIMESTAMP", "date"),
    Format("Request tokens", "Response tokens", "Timestamp", "s"),
)
"""Of Mooncake, Azure and BurstGPT."""


def find_format(row: Row) -> Format:
    """Return the format of which a row has the most columns."""
    return max(FORMATS, key=lambda form: len(row.keys() & {*form}))


def find_arrival(source: TraceSource, speed: float) -> Trace:
    """Return the arrival times of a trace's rows, at this speed. Raises PromptError like `read_files`."""
    row = next((row for row in read_files(source.path) if not isinstance(row, UnreadableRow)), Row())
    form = find_format(row)
    return Trace(kind="trace", path=source.path, column=form.stamp, unit=form.unit, speed=speed)


class TraceRow(Row):
    """A row that knows its place, and how long after the trace's first stamp its request came."""

    __slots__ = ("number", "offset_s")

    def __init__(self, row: Row, number: int, offset_s: float | None) -> None:
        super().__init__(row)
        self.number = number
        self.offset_s = offset_s


def read_trace(source: TraceSource) -> Iterator[TraceRow | UnreadableRow]:
    """Yield the rows; without a usable timestamp, the offset is None. Raises PromptError like `read_files`."""
    first: float | None = None
    for number, row in enumerate(read_files(source.path)):
        if isinstance(row, UnreadableRow):
            yield row
            continue
        form = find_format(row)
        stamp = read_stamp(row.get(form.stamp), form.unit)
        first = stamp if first is None else first
        offset_s = None if stamp is None or first is None else (stamp - first) / UNITS_PER_S[form.unit]
        yield TraceRow(row, number, offset_s)


class TracePrompts(Reader):
    """A trace's prompts under one tokenizer."""

    def __init__(self, source: TraceSource, tokenizer: Any) -> None:
        """Raise ModelError for a tokenizer without usable tokens."""
        self._ids = choose_ids(tokenizer, LEAST_WORDS)
        self._source = source
        self._tokenizer = tokenizer

    def _read(self, row: TraceRow) -> Prompt:
        """Return the row's prompt. Raises RowShapeError for missing columns, RowError for impossible lengths."""
        form = find_format(row)
        prompt_tokens, output_tokens = (read_count(find_column(row, name, NAMED_BY), name) for name in form[:2])
        find_column(row, form.stamp, NAMED_BY)
        ids = self._draw_prompt(row.number, prompt_tokens, self._read_blocks(row, prompt_tokens))
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return Prompt(
            messages=[{"role": "user", "content": text}],
            sampling={"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True},
            prompt_token_ids=ids,
            due_offset_s=row.offset_s,
        )

    def _read_blocks(self, row: TraceRow, prompt_tokens: int) -> list[int]:
        """Return the numbers of the prompt's blocks; empty if the row has none."""
        numbers = row.get(HASH_IDS)
        if numbers is None:
            return []
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise RowError(f"The column {HASH_IDS} holds {numbers!r:.80}, expected whole numbers.")
        blocks = -(-prompt_tokens // self._source.block_tokens)
        if len(numbers) > blocks:
            raise RowError(
                f"The column {HASH_IDS} has {len(numbers)} blocks, and a prompt of {prompt_tokens} tokens has at most "
                f"{blocks} of {self._source.block_tokens}. hint: set prompts.source.block_tokens to the trace's."
            )
        return numbers

    def _draw_prompt(self, number: int, prompt_tokens: int, blocks: list[int]) -> list[int]:
        size, seed = self._source.block_tokens, self._source.seed
        ids = [id for block in blocks for id in self._draw(f"{seed}/block/{block}", size)]
        return (ids + self._draw(f"{seed}/row/{number}", max(prompt_tokens - len(ids), 0)))[:prompt_tokens]

    def _draw(self, seed: str, tokens: int) -> list[int]:
        return random.Random(seed).choices(self._ids, k=tokens)

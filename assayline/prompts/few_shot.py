"""Few-shot examples: questions with their answers, as turns of the chat before the question.

An example is drawn by a hash of the seed and its question, so every machine draws the same examples, regardless of the
order of rows and of added rows with higher hashes. Only drawn examples are held in memory, but all rows are read before
the first prompt. A prompt's own question is never among its examples. Questions are compared by their messages, without
system messages, so the same question in another row or with another answer is left out, too.
"""

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from assayline.digests import digest_json
from assayline.errors import PromptError
from assayline.media.references import MediaStore
from assayline.prompts.columns import RowReader
from assayline.prompts.media import identify_media
from assayline.prompts.row import Message, Row, RowError, RowShapeError, UnreadableRow
from assayline.prompts.sources import read_rows
from assayline.prompts.sources.files import find_files
from assayline.prompts.targets import read_golds
from assayline.prompts.template import PromptTemplate
from assayline.spec.prompts import FewShotSpec, PromptSpec


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its answer."""

    question_id: str
    turns: list[Message]


class FewShot:
    """The examples of a prompt set."""

    def __init__(self, spec: PromptSpec, few_shot: FewShotSpec, media_store: MediaStore | None = None) -> None:
        """Draw the examples. Raises PromptError for a source that cannot be read (twice), or has too few of them."""
        self._spec = few_shot
        is_own = few_shot.source is None
        source = few_shot.source or spec.source
        own_files = chain.from_iterable(map(find_files, (is_own and source.files) or []))
        if once := next((path for path in own_files if not path.is_file()), None):
            raise PromptError(
                f"The examples come from the prompt set itself, and {once} can be read only once. "
                "hint: set prompts.few_shot.source, or use a regular file."
            )
        pool = _Pool(few_shot.seed, few_shot.count + 1)
        reason = _fill(pool, read_rows(source), spec, few_shot, media_store)
        self._examples = pool.examples
        needed = few_shot.count + is_own  # a prompt of the same set cannot have itself
        if len(self._examples) < needed:
            last = f" The last one that cannot be used: {reason}" if reason else ""
            raise PromptError(
                f"prompts.few_shot.count is {few_shot.count}, which needs {needed} rows with different "
                f"questions and an answer each, but there are {len(self._examples)}. hint: lower it, or see "
                f"prompts.few_shot.source, .answer and prompts.columns.target.{last}"
            )

    def put_before(self, messages: list[Message]) -> list[Message]:
        """Return the messages with examples before them, after system messages. Raises RowError if too few are left."""
        own_id = _identify(messages)
        chosen = [example for example in self._examples if example.question_id != own_id][: self._spec.count]
        if len(chosen) < self._spec.count:
            raise RowError(
                f"Only {len(chosen)} of the few-shot examples ask something else than this "
                f"prompt, expected {self._spec.count}. hint: add rows to prompts.few_shot.source."
            )
        start = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        turns = [turn for example in chosen for turn in example.turns]
        return [*messages[:start], *turns, *messages[start:]]


class _Pool:
    """The examples with the smallest hashes, one per question."""

    def __init__(self, seed: int, size: int) -> None:
        self._seed = seed
        self._size = size
        self._by_key: dict[int, Example] = {}
        self._largest: list[int] = []  # a heap of negated keys

    @property
    def examples(self) -> list[Example]:
        """In the order of their hashes."""
        return [self._by_key[key] for key in sorted(self._by_key)]

    def wants(self, question_id: str) -> bool:
        """Return whether an example with this question would be kept."""
        key = self._hash(question_id)
        return key not in self._by_key and (len(self._by_key) < self._size or key < -self._largest[0])

    def add(self, example: Example) -> None:
        """Add a wanted example, and drop the one with the largest hash if there are too many."""
        key = self._hash(example.question_id)
        self._by_key[key] = example
        heapq.heappush(self._largest, -key)
        if len(self._by_key) > self._size:
            del self._by_key[-heapq.heappop(self._largest)]

    def _hash(self, question_id: str) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._seed}/{question_id}".encode(), digest_size=16).digest())


def _fill(
    pool: _Pool,
    rows: Iterable[Row | UnreadableRow],
    spec: PromptSpec,
    few_shot: FewShotSpec,
    media_store: MediaStore | None,
) -> str | None:
    """Offer every row to the pool. Returns why the last rejected row cannot be an example."""
    columns = spec.columns
    target = None if few_shot.answer is not None else columns.target
    unused = dict.fromkeys(("id", "sampling", "output_tokens", "options"))
    asked = columns.model_copy(update={**unused, "target": target, "metadata": []})
    reader = RowReader(asked, spec.template, spec.media, media_store)
    answer = None if few_shot.answer is None else PromptTemplate(few_shot.answer, "prompts.few_shot.answer")
    reason = None
    for number, row in enumerate(rows):
        if isinstance(row, UnreadableRow):
            reason = row.message
            continue
        try:
            parts = reader.read(row)
            question_id = _identify(parts.messages)
            if number == 0 or pool.wants(question_id):  # the first row shows what is wrong with the answer's template
                text = read_golds(parts.target)[0] if answer is None else answer.render(row)[0]["content"]
                example = Example(question_id, _make_turns(parts.messages, text))
                if pool.wants(question_id):
                    pool.add(example)
        except RowShapeError as error:
            if number == 0:
                raise PromptError(f"The first row of the few-shot examples does not fit the spec. {error}") from None
            reason = str(error)
        except RowError as error:
            reason = str(error)
    return reason


def _make_turns(messages: list[Message], answer: str | None) -> list[Message]:
    turns = [message for message in messages if message["role"] != "system"]
    if answer is None or not answer.strip():
        raise RowError("it has no answer: its target is missing or empty, and there is no prompts.few_shot.answer.")
    if not turns or turns[-1]["role"] == "assistant":
        raise RowError("its messages end with the assistant's turn, where its answer would come.")
    return [*turns, {"role": "assistant", "content": answer}]


def _identify(messages: list[Message]) -> str:
    return digest_json([message for message in identify_media(messages) if message["role"] != "system"])

"""The order in which requests are sent: as given, or the longest answers first.

At the end of a run in the order given, a few long answers that began late keep a nearly empty engine busy. Begun first,
they end with the others (longest processing time first; Graham, "Bounds on multiprocessing timing anomalies", 1969).
How long an answer will be, earlier runs of the same model on the same prompts say. A wrong guess costs speed, no row.

Prompts that share most of their tokens, as questions about one document do, stay together all the same where the engine
caches prefixes: scattered, each would find its document gone from a cache that is smaller than all documents.

Prompts are streamed, so they are ordered within a horizon of `HORIZON_SHARDS` shards; of the shards that are there, the
dispatcher reads the one with the longest answers first. What was expected when the run began is kept in its folder: a
run that is resumed while it prepares must write the same shards again.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assayline.errors import StoreError
from assayline.files import MAKE_ROOM, replace_file
from assayline.records import Request
from assayline.requests.build import Prepared
from assayline.spec.evaluation import EvalSpec
from assayline.spec.sources import ShareGptSource

LENGTHS_NAME = "lengths.parquet"
HORIZON_SHARDS = 16
LARGEST_HORIZON = 2**25
"""Characters and tokens of its requests, beyond which a horizon ends early."""

FAMILY_TOKENS = 128
"""The shortest common prefix for which prompts are kept together; a shorter one costs little to read again."""

UNKNOWN_TOKENS = 9_999_999
"""For an answer of which neither a length nor a limit is known: it is begun before those that are known to end."""


class ExpectedLengths:
    """Expected output tokens by prompt: 12 bytes each."""

    def __init__(self, prompt_ids: Iterable[str], output_tokens: Iterable[int]) -> None:
        keys = np.fromiter(map(_key, prompt_ids), np.uint64)
        by_key = np.argsort(keys)
        self._keys = keys[by_key]
        self._tokens = np.fromiter(output_tokens, np.uint32)[by_key]

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, prompt_id: str) -> int | None:
        """Expected length of the prompt's answer in tokens; None: nobody knows."""
        key = _key(prompt_id)
        place = int(np.searchsorted(self._keys, np.uint64(key)))
        return int(self._tokens[place]) if place < len(self) and self._keys[place] == key else None


def keep_lengths(run_dir: Path, lengths: pa.Table) -> None:
    """Keeps what is expected, as columns prompt_id and output_tokens, in the run's folder. Raises StoreError."""
    path = run_dir / LENGTHS_NAME
    try:
        replace_file(path, lambda file: pq.write_table(lengths, file))
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}. {MAKE_ROOM}") from error


def read_lengths(run_dir: Path) -> ExpectedLengths:
    """What was kept; nothing, where nothing was known when the run began. Raises StoreError for a damaged file."""
    path = run_dir / LENGTHS_NAME
    if not path.exists():
        return ExpectedLengths((), ())
    try:
        return ExpectedLengths(_read_column(path, "prompt_id"), _read_column(path, "output_tokens"))
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"{path}, which says in which order the run's prompts are sent, cannot be read: {error}. Put a copy in its "
            "place, or start a new run with --fresh."
        ) from error


def _read_column(path: Path, name: str) -> Iterator[Any]:
    """A column's values, few at a time: of a million prompts the ids alone are 100 MB as Python's strings."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[name]):
            yield from batch.column(0).to_pylist()


def can_order(spec: EvalSpec, lengths: ExpectedLengths) -> bool:
    """Whether anything may tell one row from another: a length that is expected, or a limit of its own."""
    source, columns = spec.prompts.source, spec.prompts.columns
    has_limits = isinstance(source, ShareGptSource) and source.max_tokens is not None
    return len(lengths) > 0 or has_limits or columns.sampling is not None or columns.output_tokens is not None


def order_rows(spec: EvalSpec, lengths: ExpectedLengths, rows: Iterable[Prepared]) -> Iterator[list[Prepared]]:
    """Yields the rows in horizons, each the longest first; rows that are expected to be equally long stay as they came.

    Their requests say what is expected of them. Rows with a long prefix in common come one after another, longest
    first, when the longest of them has its turn.
    """
    caches_prefixes = spec.engine.args.get("enable_prefix_caching") is not False
    horizon: list[Prepared] = []
    requests = size = 0
    for row in rows:
        expected = lengths.of(row.prompt.prompt_id)
        asked = [replace(request, expected_output_tokens=expected) for request in row.requests]
        horizon.append(replace(row, requests=asked))
        requests += len(asked)
        size += sum(map(measure_request, asked))
        if requests >= HORIZON_SHARDS * spec.shard_requests or size >= LARGEST_HORIZON:
            yield sort_rows(horizon, caches_prefixes)
            horizon, requests, size = [], 0, 0
    yield sort_rows(horizon, caches_prefixes)


def expected_tokens(request: Request) -> int:
    """The length that counts for the order: what is expected, else what is allowed, and never more than that."""
    limits = (request.expected_output_tokens, request.sampling.get("max_tokens"))  # a row may say anything here
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=UNKNOWN_TOKENS)


def measure_request(request: Request) -> int:
    """Characters and tokens of a request."""
    messages = [*(request.messages or ()), *(request.turn_messages or ())]
    said = sum(len(str(message.get("content"))) for message in messages)
    return len(request.rendered or "") + len(request.prompt_token_ids) + said


def sort_rows(rows: list[Prepared], caches_prefixes: bool) -> list[Prepared]:
    """One horizon, the longest first."""
    longest = [max(map(expected_tokens, row.ready), default=0) for row in rows]
    families = _name_families(rows) if caches_prefixes else range(len(rows))
    first: dict[int, tuple[int, int]] = {}  # where a family begins: with its longest
    for place, family in enumerate(families):
        first[family] = min(first.get(family, (0, place)), (-longest[place], place))
    order = sorted(range(len(rows)), key=lambda place: (first[families[place]], -longest[place], place))
    return [rows[place] for place in order]


def _name_families(rows: list[Prepared]) -> list[int]:
    """A number for each row, the same for rows with a long prefix in common, beyond what all of them begin with.

    It is long from FAMILY_TOKENS on, if it is more than half of the longer prompt.
    """
    prompts = [row.ready[0].prompt_token_ids if row.ready and not row.prompt.media else [] for row in rows]
    families = list(range(len(rows)))
    asked = [place for place in families if prompts[place]]
    by_tokens = sorted(asked, key=prompts.__getitem__)  # prompts with a prefix in common are neighbours
    common = _count_shared(prompts[by_tokens[0]], prompts[by_tokens[-1]]) if by_tokens else 0
    for before, place in itertools.pairwise(by_tokens):
        longer = max(len(prompts[before]), len(prompts[place])) - common
        shared = common + max(longer // 2 + 1, FAMILY_TOKENS)
        if len(prompts[before]) >= shared and prompts[before][:shared] == prompts[place][:shared]:
            families[place] = families[before]
    return families


def _count_shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _key(prompt_id: str) -> int:
    return int(prompt_id[:16], 16)

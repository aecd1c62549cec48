"""Which rows are asked, in which order: a limit and a seeded shuffle.

The order is by a hash of (seed, row number), not by a random generator's state: it is the same on every machine, and a
row keeps its place relative to the others when the source grows.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def select_rows(
    rows: Iterable[T], limit: int | None = None, shuffle_seed: int | None = None
) -> Iterator[tuple[int, T]]:
    """Yields (0-based position in the source, row).

    Without a seed it streams, and reads no further than the limit. With one it reads the whole source before the first
    row comes out, holding `limit` rows in memory, or all rows if there is no limit.
    """
    numbered = enumerate(rows)
    if shuffle_seed is None:
        yield from islice(numbered, limit)
        return
    keyed = ((_shuffle_key(shuffle_seed, number), number, row) for number, row in numbered)
    by_key = sorted(keyed, key=_first_two) if limit is None else heapq.nsmallest(limit, keyed, key=_first_two)
    for _, number, row in by_key:
        yield number, row


def _shuffle_key(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest())


def _first_two(keyed: tuple[int, int, T]) -> tuple[int, int]:
    return keyed[0], keyed[1]

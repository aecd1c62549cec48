"""Shards: part files of the table `requests`, which workers claim whole."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from assayline.media.shelf import find_media
from assayline.records import Request
from assayline.store.parts import part_unreadable
from assayline.store.tables import request_from_row


def name_shard(number: int, weight: int | None = None) -> str:
    """A shard's name, with what its place in the queue goes by: the tokens of its longest answer, as far as that is
    expected, or its requests. Without, it is claimed by its number.
    """
    return f"shard-{number:06d}" + ("" if weight is None else f"-{weight:07d}")


def heaviest_first(shard: Path) -> tuple[int, str]:
    """What a shard's place in the queue goes by."""
    _, _, weight = shard.stem.partition("-")[2].partition("-")
    return -int(weight or 0), shard.name


def read_shard(path: Path, answered: frozenset[str] = frozenset()) -> Iterator[Request]:
    """The shard's requests that are to be generated: not answered before, nor by an error row when it was prepared.

    Raises StoreError for a damaged part.
    """
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    is_ready = row["prompt_token_ids"] or row["messages_json"]
                    if is_ready and row["request_id"] not in answered:
                        yield _find_media(request_from_row(row), path.parents[2])
    except (OSError, pa.ArrowException) as error:
        raise part_unreadable(path, error) from error


def _find_media(request: Request, run_dir: Path) -> Request:
    if request.media is None:
        return request
    return replace(request, media=[find_media(media, run_dir) for media in request.media])

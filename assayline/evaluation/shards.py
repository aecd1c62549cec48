"""Shards: part files of the table `requests`, which the dispatcher reads one after another."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assayline.media.references import find_media
from assayline.records import EarlierTurn, Request
from assayline.store.parts import StoredText, part_unreadable
from assayline.store.tables import request_from_row


def name_shard(number: int, weight: int | None = None) -> str:
    """A shard's name. `weight`: expected tokens of its longest answer, if shards are read by that."""
    return f"shard-{number:06d}" + ("" if weight is None else f"-{weight:07d}")


def heaviest_first(shard: Path) -> tuple[int, str]:
    """Sort key: the shard with the longest answers first, then by number."""
    _, _, weight = shard.stem.partition("-")[2].partition("-")
    return -int(weight or 0), shard.name


ReadTexts = Callable[[frozenset[str]], Mapping[str, StoredText]]
"""Finds what requests were answered, by their ids."""


def read_shard(
    path: Path, answered: frozenset[str] = frozenset(), read_texts: ReadTexts = lambda request_ids: {}
) -> Iterator[Request]:
    """The shard's requests that are to be generated: not answered before, nor by an error row when it was prepared.

    A turn of a conversation has with it those that came before, in their order; of them, `read_texts` tells what those
    in `answered` were answered. Raises StoreError for a damaged part.
    """
    try:
        with pq.ParquetFile(path) as file:
            has_turns = "turn_index" in file.schema_arrow.names
            texts = read_texts(_list_turns(file) & answered) if has_turns and answered else {}
            earlier: list[EarlierTurn] = []
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    is_ready = row["prompt_token_ids"] or row["messages_json"] or row.get("turn_messages_json")
                    if not is_ready:
                        continue
                    is_answered = row["request_id"] in answered
                    if row.get("turn_index") is None and is_answered:
                        continue
                    request = _find_media(request_from_row(row), path.parents[2])
                    if request.turn_index is not None:
                        earlier = earlier if request.turn_index else []
                        request = replace(request, earlier_turns=earlier)
                        stored = texts.get(request.request_id, StoredText())
                        earlier = [*earlier, EarlierTurn(request.turn_messages or [], *stored)]
                    if not is_answered:
                        yield request
    except (OSError, pa.ArrowException) as error:
        raise part_unreadable(path, error) from error


def _list_turns(file: pq.ParquetFile) -> frozenset[str]:
    """Requests that are turns of conversations."""
    rows = file.read(columns=["request_id", "turn_index"])
    return frozenset(rows.filter(pc.is_valid(rows["turn_index"]))["request_id"].to_pylist())


def _find_media(request: Request, run_dir: Path) -> Request:
    if request.media is None:
        return request
    return replace(request, media=[find_media(media, run_dir) for media in request.media])

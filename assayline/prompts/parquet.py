"""Rows of Parquet files, as Python's own values, the same on every machine.

Three of Arrow's types would not arrive as a person wrote them, and are converted: a 32-bit 0.1 would be
0.10000000149011612; nanoseconds need pandas, which may not be there, and are cut to microseconds; a map would be a list
of pairs and is an object.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from assayline.errors import PromptError

BATCH_ROWS = 256


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yields rows, a batch in memory at a time. Raises PromptError for a file that is damaged."""
    rows_read = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                rows = _list_rows(batch)
                yield from rows
                rows_read += len(rows)
    except Exception as error:  # a foreign file: besides Arrow's errors there are those of dates, time zones, decimals
        raise PromptError(
            f"{path}, after row {rows_read}: not readable as Parquet ({str(error).strip()}). The file is "
            "damaged, no Parquet file, or holds values that Python has no like of, such as a date in the "
            "year 100,000: write it again."
        ) from None


def _list_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [_convert(column) for column in batch.columns]
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist(
        maps_as_pydicts="lossy"
    )
    return rows


def _convert(column: pa.Array) -> pa.Array:
    """The column with types that Python has the like of; 32-bit numbers go by their shortest text."""
    texts = _replace(column.type, {pa.float32(): pa.string(), **MICROSECONDS})
    doubles = _replace(column.type, {pa.float32(): pa.float64(), **MICROSECONDS})
    if doubles == column.type:
        return column
    return column.cast(texts, safe=False).cast(doubles)


MICROSECONDS = {pa.time64("ns"): pa.time64("us"), pa.duration("ns"): pa.duration("us")}


def _replace(given: pa.DataType, others: dict[pa.DataType, pa.DataType]) -> pa.DataType:
    """A type with other types in place of some, in lists and objects too."""
    if pa.types.is_timestamp(given) and given.unit == "ns":
        return pa.timestamp("us", given.tz)
    if pa.types.is_struct(given):
        return pa.struct([field.with_type(_replace(field.type, others)) for field in given])
    if pa.types.is_list(given):
        return pa.list_(given.value_field.with_type(_replace(given.value_type, others)))
    if pa.types.is_large_list(given):
        return pa.large_list(given.value_field.with_type(_replace(given.value_type, others)))
    return others.get(given, given)

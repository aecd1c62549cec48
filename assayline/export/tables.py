"""CSV, JSON lines and Parquet: one row per request, with every duration that metrics are made of.

Parquet is a folder of files of plain types, none of them larger than a few hundred thousand rows, so that whatever
reads a folder of Parquet (DuckDB, DuckLake, Iceberg's tools, ClickHouse, Spark) takes it as it is. Parts of one run
come into another lake by naming the folder.
"""

import csv
import datetime
import json
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from assayline.export.rows import RowStream

FILE_ROWS = 200_000
"""Of a Parquet file."""
FILE_NAME = "requests-{number:05d}.parquet"
FILE_PATTERNS = ("requests-*.parquet",)

_TYPES = {
    "VARCHAR": pa.string(), "INTEGER": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"), "INTEGER[]": pa.list_(pa.int32()), "DOUBLE[]": pa.list_(pa.float64()),
}  # fmt: skip


def write_csv(rows: RowStream, file: TextIO) -> None:
    """A header and a line per request; an empty field is null, lists are JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows.columns)
    for row in rows.read():
        writer.writerow([_write_cell(value) for value in row.values()])


def write_jsonl(rows: RowStream, file: TextIO) -> None:
    """An object per request. Columns that hold JSON are objects here, without `_json` in their names."""
    for row in rows.read():
        opened = {
            name.removesuffix("_json"): _open(value) if name.endswith("_json") else _write_value(value)
            for name, value in row.items()
        }
        file.write(json.dumps(opened, ensure_ascii=False) + "\n")


def write_parquet(rows: RowStream, folder: Path) -> None:
    """Files in the order of the prompt set, `requests-00000.parquet` first; of no rows, one that says its columns."""
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in rows.columns.items()])
    writer: pq.ParquetWriter | None = None
    number = written = 0
    try:
        for piece in rows.read_pieces():
            if writer is None:
                writer = pq.ParquetWriter(folder / FILE_NAME.format(number=number), schema, compression="zstd")
            writer.write_table(pa.Table.from_pylist(piece, schema=schema))
            written += len(piece)
            if written >= FILE_ROWS:
                writer.close()
                writer, number, written = None, number + 1, 0
        if writer is None and number == 0:
            writer = pq.ParquetWriter(folder / FILE_NAME.format(number=0), schema, compression="zstd")
    finally:
        if writer is not None:
            writer.close()


def _write_cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else _write_value(value)


def _write_value(value: Any) -> Any:
    return value.isoformat() + "Z" if isinstance(value, datetime.datetime) else value


def _open(value: str | None) -> Any:
    return None if value is None else json.loads(value)

"""Export a run from the database, or from the part files of a killed run, to one file or folder.

An export is written to a temporary path and renamed when it is complete. Existing files are kept unless `force` is set.

CSV, JSON lines and Parquet have one row per request, with all durations from which metrics are computed. Parquet is a
folder of files with plain column types and at most a few hundred thousand rows each, so that readers of Parquet folders
(DuckDB, DuckLake, Iceberg's tools, ClickHouse, Spark) can read it directly. Pass the folder to import a run into
another lake.
"""

import csv
import datetime
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from assayline.errors import SpecError
from assayline.export.batch import write_batch
from assayline.export.harness import SAMPLE_PATTERNS, write_harness_results
from assayline.export.rows import METRICS, TEXTS, ExportedRun, RowStream, TokenNames, find_exported, open_rows
from assayline.export.vllm_bench import write_result
from assayline.files import UNFINISHED, storing, sync_folder
from assayline.settings import Settings
from assayline.store.database import Connection
from assayline.store.ingest import load_parts
from assayline.store.thread import DatabaseThread

ADVICE = "free space, or choose another place with --output."


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[TextIO]:
    """Open a text file that is renamed to `path` if the block succeeds. If it stays empty, `path` is removed.

    Raises SpecError for a file that exists already, unless `force`, and StoreError.
    """
    check_free(path, force)
    aside = path.parent / f".{path.name}{UNFINISHED}"
    try:
        with storing(f"{path} cannot be written", ADVICE):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(aside, "w", encoding="utf-8", errors="replace", newline="") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                is_empty = file.tell() == 0
            if is_empty:
                path.unlink(missing_ok=True)
            else:
                check_free(path, force)
                aside.replace(path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, patterns: tuple[str, ...], force: bool) -> Iterator[Path]:
    """Make an empty folder that is renamed to `path` if the block succeeds.

    `force` replaces a folder whose files all match `patterns`. Raises SpecError if `path` exists otherwise, and
    StoreError.
    """
    check_free(path, force, patterns)
    aside, replaced = (path.parent / f".{path.name}{part}{UNFINISHED}" for part in ("", ".replaced"))
    try:
        with storing(f"{path} cannot be written", ADVICE):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            yield aside
            check_free(path, force, patterns)
            if path.exists():
                shutil.rmtree(replaced, ignore_errors=True)
                path.rename(replaced)  # deleted when the new files are in place
            aside.replace(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def check_free(path: Path, force: bool, patterns: tuple[str, ...] | None = None) -> None:
    """Raise SpecError if `path` exists and must not be replaced.

    `patterns`: file names of a folder export; None if the export is one file.
    """
    if not path.exists():
        return
    if patterns is None and path.is_dir():
        raise SpecError(f"{path} is a folder, but this format is one file. hint: pass a file's path with --output.")
    if patterns is not None and not path.is_dir():
        raise SpecError(f"{path} is a file, but this format is a folder. hint: pass a folder with --output.")
    foreign = [entry.name for entry in path.iterdir() if not _is_ours(entry, patterns)] if patterns else []
    if foreign:
        raise SpecError(
            f"{path} contains {sorted(foreign)[0]}, which is not part of such an export; nothing was replaced. "
            "hint: pass another folder with --output."
        )
    if not force and (patterns is None or any(path.iterdir())):
        raise SpecError(f"{path} already exists. hint: pass another path with --output, or replace it with --force.")


def _is_ours(entry: Path, patterns: tuple[str, ...]) -> bool:
    return entry.is_file() and any(fnmatch(entry.name, pattern) for pattern in patterns)


FILE_ROWS = 200_000
"""Maximum rows of a Parquet file."""
FILE_NAME = "requests-{number:05d}.parquet"
FILE_PATTERNS = ("requests-*.parquet",)

_TYPES = {
    "VARCHAR": pa.string(), "INTEGER": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"), "INTEGER[]": pa.list_(pa.int32()), "DOUBLE[]": pa.list_(pa.float64()),
}  # fmt: skip


def _write_csv(rows: RowStream, file: TextIO) -> None:
    """Write a header and a line per request. Null is an empty field; lists are JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows.columns)
    for row in rows.read():
        writer.writerow([json.dumps(value) if isinstance(value, list) else _say_time(value) for value in row.values()])


def _write_jsonl(rows: RowStream, file: TextIO) -> None:
    """Write an object per request. JSON columns become objects, without `_json` in their names."""
    for row in rows.read():
        opened = {
            name.removesuffix("_json"): json.loads(value or "null") if name.endswith("_json") else _say_time(value)
            for name, value in row.items()
        }
        file.write(json.dumps(opened, ensure_ascii=False) + "\n")


def _say_time(value: Any) -> Any:
    return value.isoformat() + "Z" if isinstance(value, datetime.datetime) else value


def _write_parquet(rows: RowStream, folder: Path) -> None:
    """Write files in the order of the prompt set, from `requests-00000.parquet`. Without rows, write one empty file."""
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


FOLDER_NAME = "exports"
"""Default folder of exports, in the run's folder."""

ERRORS_SUFFIX = ".errors.jsonl"


@dataclass(frozen=True, slots=True)
class Exported:
    """An export on disk."""

    files: list[Path]
    """The files that were written, or the folder."""
    sentences: list[str]
    """Lines to print: counts, and what the run lacks."""


@dataclass(frozen=True, slots=True)
class _Order:
    run_dir: Path
    output: Path
    force: bool


Write = Callable[[Connection, ExportedRun, _Order], Exported]


def export_run(settings: Settings, run_id: str, form: str, output: Path | None = None, force: bool = False) -> Exported:
    """Export a run in one of FORMATS to `output` (default: `exports/` in the run's folder).

    Answers in part files are loaded into the database first. Raises SpecError for an unknown run, an unsuitable
    format, and an existing output unless `force`; StoreError if the database or the disk fails.
    """
    settings.need_database()
    run_dir = settings.run_dir(run_id)
    name, write, patterns = FORMATS[form]
    order = _Order(run_dir, output or run_dir / FOLDER_NAME / name, force)
    check_free(order.output, force, patterns)  # before the work

    def work(connection: Connection) -> Exported:
        run = find_exported(connection, run_id)
        if run.row["state"] != "completed" and run_dir.is_dir():
            load_parts(connection, run_id, run_dir)
            run = find_exported(connection, run_id)
        exported = write(connection, run, order)
        gap = run.describe_gap()
        return exported if gap is None else Exported(exported.files, [*exported.sentences, gap])

    return DatabaseThread(settings).run(work)


def name_errors(output: Path) -> Path:
    """Return the path of a batch's error file, next to its output."""
    return output.with_name(output.name.removesuffix(".jsonl") + ERRORS_SUFFIX)


def _export_batch(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    if run.has_options:
        raise SpecError(
            f"Run {run.row['run_id']} has likelihoods of given answers, and openai-batch needs generated text. "
            "hint: export it as csv, jsonl, parquet or lm-eval."
        )
    _refuse_turns(run, "openai-batch")
    errors = name_errors(order.output)
    with (
        open_rows(connection, TEXTS, run.row["run_id"]) as rows,
        new_file(order.output, order.force) as output_file,
        new_file(errors, order.force) as error_file,
    ):
        written = write_batch(run, rows.read(), TokenNames(run), output_file, error_file)
    files = [path for path, lines in ((order.output, written.answered), (errors, written.failed)) if lines]
    return Exported(files, [f"{written.answered} lines answered, {written.failed} with an error."])


def _export_file(
    connection: Connection, run: ExportedRun, order: _Order, write: Callable[[RowStream, TextIO], None]
) -> Exported:
    with open_rows(connection, METRICS, run.row["run_id"]) as rows, new_file(order.output, order.force) as file:
        write(rows, file)
    return Exported([order.output] if order.output.exists() else [], [f"{run.requests} requests."])


def _export_parquet(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    with (
        open_rows(connection, METRICS, run.row["run_id"]) as rows,
        new_folder(order.output, FILE_PATTERNS, order.force) as folder,
    ):
        _write_parquet(rows, folder)
    return Exported([order.output], [f"{run.requests} requests."])


def _export_harness(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    _refuse_turns(run, "lm-eval")
    with new_folder(order.output, SAMPLE_PATTERNS, order.force) as folder:
        tasks = write_harness_results(connection, run, order.run_dir, folder)
    return Exported([order.output], [f"Results and samples of {', '.join(tasks)}."])


def _export_vllm_bench(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    return _export_file(connection, run, order, partial(write_result, connection, run))


def _refuse_turns(run: ExportedRun, form: str) -> None:
    if run.has_turns:
        raise SpecError(
            f"Run {run.row['run_id']} has conversations sent turn by turn, and {form} has one question per prompt. "
            "hint: export it as csv, jsonl, parquet or vllm-bench."
        )


FORMATS: dict[str, tuple[str, Write, tuple[str, ...] | None]] = {
    "openai-batch": ("batch_output.jsonl", _export_batch, None),
    "csv": ("requests.csv", partial(_export_file, write=_write_csv), None),
    "jsonl": ("requests.jsonl", partial(_export_file, write=_write_jsonl), None),
    "parquet": ("requests", _export_parquet, FILE_PATTERNS),
    "lm-eval": ("lm_eval", _export_harness, SAMPLE_PATTERNS),
    "vllm-bench": ("vllm_bench.json", _export_vllm_bench, None),
}
"""Formats by name: default file name, writer and, for a folder, the patterns of its files."""

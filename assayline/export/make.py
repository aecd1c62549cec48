"""Exporting a run: from the database, or what is on disk of a run that was killed, to one file or folder.

An export is written aside and put in its place when it is whole. What is there stays, unless it is to be replaced.

CSV, JSON lines and Parquet have one row per request, with every duration that metrics are made of. Parquet is a folder
of files of plain types, none of them larger than a few hundred thousand rows, so that whatever reads a folder of
Parquet (DuckDB, DuckLake, Iceberg's tools, ClickHouse, Spark) takes it as it is. Parts of one run come into another
lake by naming the folder.
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

ADVICE = "Free space, or give another place with --output."


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[TextIO]:
    """A text file that is at `path` when the block ends well; left empty, it is not there, nor is one of before.

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
    """An empty folder that is at `path` when the block ends well, whole.

    `force` replaces a folder whose files all match `patterns`, as an export's do. Raises SpecError for a place that is
    taken, and StoreError.
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
                path.rename(replaced)  # its files go when the new ones are in their place
            aside.replace(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def check_free(path: Path, force: bool, patterns: tuple[str, ...] | None = None) -> None:
    """Raises SpecError where something stands at `path` that is not to be replaced.

    `patterns` are names of files in a folder of an export; None: the export is one file.
    """
    if not path.exists():
        return
    if patterns is None and path.is_dir():
        raise SpecError(f"{path} is a folder, and this format is a file. Give the file's path with --output.")
    if patterns is not None and not path.is_dir():
        raise SpecError(f"{path} is a file, and this format is a folder of files. Give a folder with --output.")
    foreign = [entry.name for entry in path.iterdir() if not _is_ours(entry, patterns)] if patterns else []
    if foreign:
        raise SpecError(
            f"{path} holds {sorted(foreign)[0]}, which is of no such export, so that nothing there is replaced. Give a "
            "folder of its own with --output."
        )
    if not force and (patterns is None or any(path.iterdir())):
        raise SpecError(f"{path} exists already. Give another place with --output, or replace it with --force.")


def _is_ours(entry: Path, patterns: tuple[str, ...]) -> bool:
    return entry.is_file() and any(fnmatch(entry.name, pattern) for pattern in patterns)


FILE_ROWS = 200_000
"""Of a Parquet file."""
FILE_NAME = "requests-{number:05d}.parquet"
FILE_PATTERNS = ("requests-*.parquet",)

_TYPES = {
    "VARCHAR": pa.string(), "INTEGER": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"), "INTEGER[]": pa.list_(pa.int32()), "DOUBLE[]": pa.list_(pa.float64()),
}  # fmt: skip


def _write_csv(rows: RowStream, file: TextIO) -> None:
    """A header and a line per request; an empty field is null, lists are JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows.columns)
    for row in rows.read():
        writer.writerow([json.dumps(value) if isinstance(value, list) else _say_time(value) for value in row.values()])


def _write_jsonl(rows: RowStream, file: TextIO) -> None:
    """An object per request. Columns that hold JSON are objects here, without `_json` in their names."""
    for row in rows.read():
        opened = {
            name.removesuffix("_json"): json.loads(value or "null") if name.endswith("_json") else _say_time(value)
            for name, value in row.items()
        }
        file.write(json.dumps(opened, ensure_ascii=False) + "\n")


def _say_time(value: Any) -> Any:
    return value.isoformat() + "Z" if isinstance(value, datetime.datetime) else value


def _write_parquet(rows: RowStream, folder: Path) -> None:
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


FOLDER_NAME = "exports"
"""In a run's folder, where an export goes unless it is told otherwise."""

ERRORS_SUFFIX = ".errors.jsonl"


@dataclass(frozen=True, slots=True)
class Exported:
    """What is on disk now."""

    files: list[Path]
    """Or the folder."""
    sentences: list[str]
    """What a person should know: counts, and what the run lacks."""


@dataclass(frozen=True, slots=True)
class _Order:
    run_dir: Path
    output: Path
    force: bool


Write = Callable[[Connection, ExportedRun, _Order], Exported]


def export_run(settings: Settings, run_id: str, form: str, output: Path | None = None, force: bool = False) -> Exported:
    """Exports a run as one of FORMATS, to `output` (default: `exports/` in the run's folder).

    What was answered and not loaded yet is loaded first. Raises SpecError for a run that is not there, a format that
    cannot hold it, and a place that is taken unless `force`; StoreError where the database or the disk refuses.
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
    """Where the error file of a batch goes: beside its output."""
    return output.with_name(output.name.removesuffix(".jsonl") + ERRORS_SUFFIX)


def _export_batch(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    if run.has_options:
        raise SpecError(
            f"Run {run.row['run_id']} asked for likelihoods of given answers, and openai-batch is of generated text. "
            "Export it as csv, jsonl, parquet or lm-eval."
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
            f"Run {run.row['run_id']} asked conversations turn by turn, and {form} has one question for each prompt. "
            "Export it as csv, jsonl, parquet or vllm-bench."
        )


FORMATS: dict[str, tuple[str, Write, tuple[str, ...] | None]] = {
    "openai-batch": ("batch_output.jsonl", _export_batch, None),
    "csv": ("requests.csv", partial(_export_file, write=_write_csv), None),
    "jsonl": ("requests.jsonl", partial(_export_file, write=_write_jsonl), None),
    "parquet": ("requests", _export_parquet, FILE_PATTERNS),
    "lm-eval": ("lm_eval", _export_harness, SAMPLE_PATTERNS),
    "vllm-bench": ("vllm_bench.json", _export_vllm_bench, None),
}
"""Each with the name that it has in a run's folder, what writes it, and, of a folder, patterns of its files."""

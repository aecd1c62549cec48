"""Exports of a run in the format of another tool, and of the tables of runs as Parquet."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from assayline.errors import SpecError
from assayline.export.batch import export_batch
from assayline.export.eee import export_eee
from assayline.export.harness import export_harness
from assayline.export.hub import export_hub
from assayline.export.rows import Exported, ExportedRun, find_exported, new_files, replace_texts
from assayline.export.tracking import export_mlflow
from assayline.settings import Settings
from assayline.store.database import Connection, is_read_only, list_models
from assayline.store.ingest import load_parts
from assayline.store.manifest import unknown_run
from assayline.store.metrics import ensure_metrics
from assayline.store.thread import DatabaseThread
from assayline.store.views import quote_text
from assayline.words import count

FOLDER_NAME = "exports"
"""Default folder of exports, in the run's folder."""
Export = Callable[[Connection, ExportedRun, Path, bool], Exported]
FORMATS: dict[str, tuple[str, Export]] = {
    "openai-batch": ("batch_output.jsonl", export_batch),
    "lm-eval": ("lm_eval", export_harness),
    "eee": ("eee", export_eee),
    "hf": ("hf", export_hub),
    "mlflow": ("", export_mlflow),
}
"""Formats by name: default file or folder, and exporter."""


def export_run(
    settings: Settings,
    run_id: str,
    form: str,
    output: Path | None = None,
    force: bool = False,
    without_texts: bool = False,
) -> Exported:
    """Export a run in one of FORMATS to `output` (default: `exports/` in the run's folder).

    With `without_texts`, digests replace prompts and answers. Answers in part files are loaded into the database
    first; then it is only read, so that a run that ends meanwhile can write it. Raises SpecError for an unknown run, an
    unsuitable format, and an existing output unless `force`; StoreError if the database or the disk fails.
    """
    settings.need_database()
    run_dir = settings.run_dir(run_id)
    name, export = FORMATS[form]

    def work(connection: Connection) -> Exported:
        run = find_exported(connection, run_id, run_dir, without_texts)
        if run.read_spec("prompts.turns") == "each":
            raise SpecError(
                f"Run {run_id} has conversations sent turn by turn, and {form} has one question per prompt. hint: copy "
                "its answers with SQL (docs/guides/exports.md)."
            )
        if run.row["state"] != "running":
            ensure_metrics(connection, [run_id])
        exported = export(connection, run, output or run_dir / FOLDER_NAME / name, force)
        gap = run.describe_gap()
        return exported if gap is None else Exported(exported.files, [*exported.sentences, gap])

    def load(connection: Connection) -> None:
        state = find_exported(connection, run_id, run_dir, without_texts).row["state"]
        if state != "completed" and run_dir.is_dir() and not is_read_only(connection):
            load_parts(connection, run_id, run_dir)
        ensure_metrics(connection, [run_id])

    database = DatabaseThread(settings)
    database.query(load)
    return database.read(work)


def export_tables(
    settings: Settings,
    run_ids: Sequence[str] = (),
    output: Path | None = None,
    force: bool = False,
    without_texts: bool = False,
) -> Exported:
    """Export the tables of these runs, or of all runs, to `run.parquet`, `metric_value.parquet` and so on.

    The default folder is `exports/tables`, in the run's folder or, for several runs, in the data folder. One DuckDB
    statement writes each file, from a read-only connection, with the comments of the table and its columns as
    metadata. Raises SpecError for an unknown run and an existing output unless `force`; StoreError if the database or
    the disk fails.
    """
    folder = settings.run_dir(run_ids[0]) if len(run_ids) == 1 else settings.data_dir
    place = output or folder / FOLDER_NAME / "tables"
    tables = [model.name for model in list_models().values() if model.is_view and model.full_name.startswith("main.")]
    database = settings.database_path

    def work(connection: Connection) -> dict[str, int]:
        _check_runs(connection, run_ids, database)
        connection.execute("set preserve_insertion_order = false")  # preserving the order costs memory
        with new_files(place, [f"{table}.parquet" for table in tables], force) as unfinished:
            return {
                table: _copy(connection, table, run_ids, unfinished / f"{table}.parquet", without_texts)
                for table in tables
            }

    rows = DatabaseThread(settings).read(work)
    return Exported([place], [f"{count(rows['run'], 'run')}, {count(rows['request'], 'request')}."])


def _check_runs(connection: Connection, run_ids: Sequence[str], database: Path) -> None:
    known = [run_id for (run_id,) in connection.execute("select run_id from raw.runs order by run_id desc").fetchall()]
    for run_id in run_ids:
        if run_id not in known:
            raise unknown_run(run_id, known, str(database))


def _copy(connection: Connection, table: str, run_ids: Sequence[str], path: Path, without_texts: bool) -> int:
    """Write a table's rows to a file. Return the number of rows."""
    ((comment,),) = connection.execute(
        "select comment from duckdb_views() where schema_name = 'main' and view_name = ?", [table]
    ).fetchall()
    column_comments = dict(
        connection.execute(
            "select column_name, comment from duckdb_columns() where schema_name = 'main' and table_name = ?", [table]
        ).fetchall()
    )
    metadata = f"{{comment: {quote_text(comment)}, column_comments: {quote_text(json.dumps(column_comments))}}}"
    run_column = next(name for name in ("run_id", "judge_run_id", "judges", "runs") if name in column_comments)
    wanted = ", ".join(map(quote_text, run_ids))
    is_list = run_column in ("judges", "runs")
    of_runs = f"list_has_any({run_column}, [{wanted}])" if is_list else f"{run_column} in ({wanted})"
    chosen = f" where {of_runs}" if run_ids else ""
    selected = f"select * {replace_texts(column_comments)} " if without_texts else ""
    statement = (
        f"copy ({selected}from main.{table}{chosen}) to {quote_text(str(path))} "
        f"(format parquet, compression zstd, kv_metadata {metadata})"
    )
    ((rows,),) = connection.execute(statement).fetchall()
    return int(rows)

"""Exporting a run: from the database, or what is on disk of a run that was killed, to one file or folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assayline.errors import SpecError, StoreError
from assayline.export.batch import write_batch
from assayline.export.harness import SAMPLE_PATTERNS, write_harness_results
from assayline.export.logprobs import TokenNames
from assayline.export.place import check_free, new_file, new_folder
from assayline.export.rows import METRICS, TEXTS, ExportedRun, find_exported, open_rows
from assayline.export.tables import FILE_PATTERNS, write_csv, write_jsonl, write_parquet
from assayline.export.vllm_bench import write_result
from assayline.settings import Settings
from assayline.store.database import Connection
from assayline.store.ingest import load_parts
from assayline.store.thread import DatabaseThread

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
    """One export."""

    run_dir: Path
    output: Path
    force: bool


Write = Callable[[Connection, ExportedRun, _Order], Exported]


def export_run(settings: Settings, run_id: str, form: str, output: Path | None = None, force: bool = False) -> Exported:
    """Exports a run as one of FORMATS, to `output` (default: `exports/` in the run's folder).

    What was answered and not loaded yet is loaded first. Raises SpecError for a run that is not there, a format that
    cannot hold it, and a place that is taken unless `force`; StoreError where the database or the disk refuses.
    """
    if not settings.database_path.exists():
        raise StoreError(
            f"There is no database at {settings.database_path}. Run an evaluation first, or set ASSAYLINE_DATA_DIR or "
            "ASSAYLINE_DATABASE to where it is."
        )
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
    _refuse_options(run, "openai-batch")
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


def _export_csv(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    with open_rows(connection, METRICS, run.row["run_id"]) as rows, new_file(order.output, order.force) as file:
        write_csv(rows, file)
    return Exported([order.output], [f"{run.requests} requests."])


def _export_jsonl(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    with open_rows(connection, METRICS, run.row["run_id"]) as rows, new_file(order.output, order.force) as file:
        write_jsonl(rows, file)
    return Exported([order.output] if run.requests else [], [f"{run.requests} requests."])


def _export_parquet(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    with (
        open_rows(connection, METRICS, run.row["run_id"]) as rows,
        new_folder(order.output, FILE_PATTERNS, order.force) as folder,
    ):
        write_parquet(rows, folder)
    return Exported([order.output], [f"{run.requests} requests."])


def _export_harness(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    _refuse_turns(run, "lm-eval")
    with new_folder(order.output, SAMPLE_PATTERNS, order.force) as folder:
        tasks = write_harness_results(connection, run, order.run_dir, folder)
    return Exported([order.output], [f"Results and samples of {', '.join(tasks)}."])


def _export_vllm_bench(connection: Connection, run: ExportedRun, order: _Order) -> Exported:
    with open_rows(connection, METRICS, run.row["run_id"]) as rows, new_file(order.output, order.force) as file:
        write_result(connection, run, rows, file)
    return Exported([order.output], [f"{run.requests} requests."])


def _refuse_options(run: ExportedRun, form: str) -> None:
    if run.has_options:
        raise SpecError(
            f"Run {run.row['run_id']} asked for likelihoods of given answers, and {form} is of generated text. Export "
            "it as csv, jsonl, parquet or lm-eval."
        )


def _refuse_turns(run: ExportedRun, form: str) -> None:
    if run.has_turns:
        raise SpecError(
            f"Run {run.row['run_id']} asked conversations turn by turn, and {form} has one question for each prompt. "
            "Export it as csv, jsonl, parquet or vllm-bench."
        )


FORMATS: dict[str, tuple[str, Write, tuple[str, ...] | None]] = {
    "openai-batch": ("batch_output.jsonl", _export_batch, None),
    "csv": ("requests.csv", _export_csv, None),
    "jsonl": ("requests.jsonl", _export_jsonl, None),
    "parquet": ("requests", _export_parquet, FILE_PATTERNS),
    "lm-eval": ("lm_eval", _export_harness, SAMPLE_PATTERNS),
    "vllm-bench": ("vllm_bench.json", _export_vllm_bench, None),
}
"""Each with the name that it has in a run's folder, what writes it, and, of a folder, patterns of its files."""

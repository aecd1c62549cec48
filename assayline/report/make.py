"""A run's report, from the database to the files."""

from pathlib import Path

from assayline.errors import StoreError
from assayline.report.document import Document
from assayline.report.write import Written, compose_report, write_report
from assayline.settings import Settings
from assayline.store.database import Connection
from assayline.store.kept import is_kept, read_kept
from assayline.store.report import read_report
from assayline.store.report_comparison import read_comparison
from assayline.store.report_runs import check_report_run, find_baseline_run
from assayline.store.staging import stage_run
from assayline.store.thread import DatabaseThread


def make_report(
    settings: Settings,
    run_id: str,
    baseline: str | None = None,
    folder: Path | None = None,
    database: DatabaseThread | None = None,
) -> Written:
    """Writes the report of a run into `folder` (default: the run's own), held against a baseline if one is given.

    `baseline` is a run's id or a pinned name. Raises SpecError for a run or baseline that is not there or has not
    finished, and StoreError.
    """
    database = database or open_database(settings)
    document = database.run(lambda connection: _compose(connection, run_id, baseline))
    return write_report(document, folder or settings.run_dir(run_id), settings.data_dir / "cache")


def open_database(settings: Settings) -> DatabaseThread:
    """The database to report from. Raises StoreError where there is none: reading must not make one."""
    if not settings.database_path.exists():
        raise StoreError(
            f"There is no database at {settings.database_path}. Run an evaluation first, or set ASSAYLINE_DATA_DIR or "
            "ASSAYLINE_DATABASE to where it is."
        )
    return DatabaseThread(settings)


def _compose(connection: Connection, run_id: str, baseline: str | None) -> Document:
    check_report_run(connection, run_id)
    other = None if baseline is None else find_baseline_run(connection, baseline, run_id)
    comparison = None if other is None else read_comparison(connection, run_id, other)
    # Metrics that are kept are read as they are; others are computed from one copy of the run's requests.
    with (read_kept if is_kept(connection, run_id) else stage_run)(connection, run_id):
        rows = read_report(connection, run_id)
    return compose_report(rows, comparison)

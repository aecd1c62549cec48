"""A benchmark's report, from the database to the files."""

from pathlib import Path

from assayline.benchmark import benchmark_dir, count_left
from assayline.report.make import open_database
from assayline.report.sweep import compose_benchmark
from assayline.report.write import Written, write_report
from assayline.settings import Settings
from assayline.store.report_benchmark import read_benchmark_rows
from assayline.store.thread import DatabaseThread


def make_benchmark_report(
    settings: Settings, benchmark_id: str, folder: Path | None = None, database: DatabaseThread | None = None
) -> Written:
    """Writes the report of a benchmark into `folder` (default: the benchmark's own).

    Raises SpecError for a benchmark without runs, and StoreError.
    """
    rows = (database or open_database(settings)).run(lambda connection: read_benchmark_rows(connection, benchmark_id))
    document = compose_benchmark(rows, count_left(benchmark_id, settings))
    return write_report(document, folder or benchmark_dir(settings, benchmark_id), settings.data_dir / "cache")

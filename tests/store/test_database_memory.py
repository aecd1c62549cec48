"""The database in little memory: what spills, what is tried again with more, and metrics from a staged run."""

from typing import Any

import duckdb
import pytest

from assayline.errors import StoreError
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.drive import Listener, drive_worker
from assayline.settings import Settings
from assayline.store.database import Connection
from assayline.store.thread import GENEROUS, DatabaseThread

LITTLE = 2**26
SORT = "select count(*) from (select md5(range::varchar) as text from range(1_000_000) order by text offset 1)"
"""A sort of some hundred MiB, which DuckDB can do on the disk."""
LIST = "select len(list(range)) from range(20_000_000)"
"""A list of 160 MiB, which it cannot."""


@pytest.fixture
def frugal(settings: Settings) -> Settings:
    return settings.model_copy(update={"database_memory_bytes": LITTLE})


def memory_of(connection: Connection) -> str:
    return str(connection.execute("select current_setting('memory_limit')").fetchall()[0][0])


def run_once(spec: Any, settings: Settings) -> str:
    evaluation = begin_evaluation(spec, settings, "never")
    counts = evaluation.prepare()
    drive_worker(evaluation, "worker-0", Listener())
    return evaluation.finish(counts).run_id


def test_query_that_does_not_fit_in_memory_spills_to_disk(frugal: Settings) -> None:
    def sort(connection: Connection) -> tuple[str, int]:
        return memory_of(connection), connection.execute(SORT).fetchall()[0][0]

    assert DatabaseThread(frugal).run(sort) == ("64.0 MiB", 999_999)


def test_query_that_cannot_spill_is_retried_with_more_memory(frugal: Settings) -> None:
    seen: list[str] = []

    def collect(connection: Connection) -> int:
        seen.append(memory_of(connection))
        return int(connection.execute(LIST).fetchall()[0][0])

    assert DatabaseThread(frugal).run(collect) == 20_000_000
    assert seen == ["64.0 MiB", f"{64 * GENEROUS}.0 MiB"]


def test_query_that_fits_nowhere_raises(frugal: Settings) -> None:
    seen: list[str] = []

    def fail(connection: Connection) -> None:
        seen.append(memory_of(connection))
        raise duckdb.OutOfMemoryException("failed to allocate")

    with pytest.raises(StoreError, match="hint: free space or memory"):
        DatabaseThread(frugal).run(fail)
    assert len(set(seen)) == 3


def test_another_error_is_not_tried_again(frugal: Settings) -> None:
    seen: list[str] = []

    def misspell(connection: Connection) -> None:
        seen.append(memory_of(connection))
        connection.execute("select no_such_column from runs")

    with pytest.raises(duckdb.BinderException):
        DatabaseThread(frugal).run(misspell)
    assert len(seen) == 1

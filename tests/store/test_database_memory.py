"""The database in little memory: what spills, what is tried again with more, and metrics from a staged run."""

from typing import Any

import duckdb
import pytest

from assayline.errors import StoreError
from assayline.evaluation.begin import begin_evaluation
from assayline.evaluation.drive import Listener, drive_worker
from assayline.settings import Settings
from assayline.store.database import Connection, connect, list_models
from assayline.store.metrics import forget_metrics, read_metric_table, stage_run
from assayline.store.thread import GENEROUS, DatabaseThread
from assayline.store.views import read_model

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


def test_what_does_not_fit_goes_to_the_disk(frugal: Settings) -> None:
    def sort(connection: Connection) -> tuple[str, int]:
        return memory_of(connection), connection.execute(SORT).fetchall()[0][0]

    assert DatabaseThread(frugal).run(sort) == ("64.0 MiB", 999_999)


def test_what_cannot_go_to_the_disk_is_tried_again_with_more(frugal: Settings) -> None:
    seen: list[str] = []

    def collect(connection: Connection) -> int:
        seen.append(memory_of(connection))
        return int(connection.execute(LIST).fetchall()[0][0])

    assert DatabaseThread(frugal).run(collect) == 20_000_000
    assert seen == ["64.0 MiB", f"{64 * GENEROUS}.0 MiB"]


def test_what_fits_nowhere_is_a_sentence(frugal: Settings) -> None:
    seen: list[str] = []

    def fail(connection: Connection) -> None:
        seen.append(memory_of(connection))
        raise duckdb.OutOfMemoryException("failed to allocate")

    with pytest.raises(StoreError, match="Free space or memory"):
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


def list_unkept_views(connection: Connection) -> list[str]:
    """Views with rows of runs, by the names that people query, but those whose rows are kept."""
    query = (
        "select distinct view_name from duckdb_views() as views join duckdb_columns() as columns "
        "on columns.table_name = view_name and columns.schema_name = views.schema_name "
        "where views.schema_name = 'main' and column_name = 'run_id' order by view_name"
    )
    kept = {model.name for model in map(read_model, list_models()) if model.is_view and model.is_kept}
    return [name for (name,) in connection.execute(query).fetchall() if name not in kept]


def rounded(value: Any) -> Any:
    """Numbers to ten digits: DuckDB adds in no fixed order."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {name: rounded(cell) for name, cell in value.items()}
    return [rounded(cell) for cell in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.slow
def test_views_that_are_not_kept_say_the_same_of_a_staged_run(make_spec: Any, settings: Settings) -> None:
    """What is kept is the same, staged or not: tests/sql/test_sql_kept.py."""
    rows = [{"question": f"{number} is {number}", "answer": str(number % 7)} for number in range(40)]
    source = {"kind": "inline", "rows": [*rows, rows[0], {"answer": "no question"}]}
    spec = make_spec(engine={"backend": "fake"}, prompts={"source": source, "repeats": 2}, shard_requests=8)
    run_once(spec, settings)
    run_id = run_once(spec, settings)
    with connect(settings.database_path, 10) as connection:
        forget_metrics(connection, run_id)
        views = list_unkept_views(connection)
        queries = [f"select * from {view} where run_id = '{run_id}' order by all" for view in views]
        before = [connection.execute(query).fetchall() for query in queries]
        with stage_run(connection, run_id):
            assert rounded([connection.execute(query).fetchall() for query in queries]) == rounded(before)
            table = read_metric_table(connection, run_id)
        assert rounded(read_metric_table(connection, run_id)) == rounded(table)
    assert len(views) > 4
    assert sum(map(len, before)) > 200


def test_the_views_read_the_staged_copy_while_it_is_there(make_spec: Any, settings: Settings) -> None:
    run_id = run_once(make_spec(engine={"backend": "fake"}, prompts={"limit": 5}), settings)
    count = "select (select ok_requests from run_summary), (select count(*) from stg_requests)"
    with connect(settings.database_path, 10) as connection:
        forget_metrics(connection, run_id)
        with stage_run(connection, run_id):
            connection.execute("delete from temp.stg_requests")
            assert connection.execute(count).fetchall() == [(0, 0)]
        assert connection.execute(count).fetchall() == [(5, 5)]

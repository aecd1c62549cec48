"""metric_values: stored metrics of drawn runs against those of independent SQL; statements run as they are."""

import duckdb
import pytest
from metric_cases import CASES, FOLDER, LARGE, draw_run, insert_rows, read_fixture

from assayline.store.database import SQL_FOLDER, apply_schema
from assayline.store.measure import list_statements
from assayline.store.metrics import store_metrics

COLUMNS = "value, low, high, n, unit, higher_is_better"


def read_values(connection: duckdb.DuckDBPyConnection, table: str, runs: list[str]) -> dict:
    query = f"select run_id, metric, statistic, detail, {COLUMNS} from {table} where list_contains(?, run_id)"
    return {row[:4]: row[4:] for row in connection.execute(query, [runs]).fetchall()}


@pytest.mark.parametrize("runs", [[run_id for run_id in CASES if run_id != LARGE], [LARGE]], ids=["small", LARGE])
def test_metric_values_are_those_of_the_fixture(runs):
    """The fixture has the values of stacked views, with SciPy's quantile in place of their approximation."""
    with duckdb.connect(config={"threads": 1}) as connection:
        apply_schema(connection)
        if LARGE in runs:
            insert_rows(connection, draw_run(LARGE, **CASES[LARGE]))
        else:
            read_fixture(connection)
        store_metrics(connection, runs)
        expected = read_values(connection, f"'{FOLDER}/expected.parquet'", runs)
        found = read_values(connection, "raw.metric_values", runs)
    assert len(expected) > 60 * len(runs) and expected.keys() <= found.keys()
    wrong = {key: (found[key], values) for key, values in expected.items() if not _is_close(found[key], values)}
    assert wrong == {}


def _is_close(one: tuple, other: tuple) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a == b if a is None or isinstance(a, (str, bool)) else a == pytest.approx(b, rel=1e-9) for a, b in pairs)


def test_statements_run_in_any_client_with_a_run_id():
    """As a user pastes them: two settings, then the file. They read views of the whole database."""
    with duckdb.connect(config={"threads": 1}) as connection:
        apply_schema(connection)
        read_fixture(connection)
        store_metrics(connection, ["poisson-windows"])
        connection.execute("set search_path = 'internal,raw,main'")
        connection.execute("set variable run_id = 'poisson-windows'")
        stored = connection.execute("select metric, statistic, detail, value from metric_value").fetchall()
        assert len(list_statements()) <= 17
        for file in sorted((SQL_FOLDER / "metrics").glob("*.sql")):
            result = connection.execute(file.read_text("utf-8"))
            names = [column[0] for column in result.description]
            rows = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
            if {"metric", "statistic", "value"} <= set(names):
                made = {(row["metric"], row["statistic"], row.get("detail"), row["value"]) for row in rows}
                assert {row for row in made if row[3] is not None} <= set(stored), file.name

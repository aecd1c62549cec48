"""A database with the whole schema, for tests of SQL (`row_kit.py`)."""

from collections.abc import Iterator

import duckdb
import pytest
from row_kit import Store

from assayline.store.database import apply_schema, list_models
from assayline.store.views import make_models


def open_schema() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as connection:
        apply_schema(connection)
        yield connection


schema = pytest.fixture(scope="session")(open_schema)
cases_schema = pytest.fixture(scope="session")(open_schema)


@pytest.fixture
def store(schema: duckdb.DuckDBPyConnection) -> Iterator[Store]:
    """Empty tables for each test: its rows are deleted."""
    yield Store(schema)
    empty(schema)


@pytest.fixture(scope="module")
def cases(cases_schema: duckdb.DuckDBPyConnection, request: pytest.FixtureRequest) -> Iterator[Store]:
    """The module's CASES: each is a run of its name, and all are measured together."""
    store = Store(cases_schema)
    for name, (given, _) in request.module.CASES.items():
        store.given_case(name, given)
    yield store
    empty(cases_schema)


def empty(connection: duckdb.DuckDBPyConnection) -> None:
    tables = "select database_name, schema_name, table_name from duckdb_tables() where table_name <> 'schema_version'"
    for database, folder, table in connection.execute(tables).fetchall():
        if folder == "raw":
            connection.execute(f"delete from raw.{table}")
            continue
        connection.execute(f"drop table {database}.{folder}.{table}")
        if database != "temp":  # of give_run_metric, in the place of a view
            make_models(connection, [list_models()[table]])

"""A database with the whole schema, for tests of SQL models (`row_kit.py`)."""

from collections.abc import Iterator

import duckdb
import pytest
from row_kit import Store

from assayline.store.database import apply_schema, list_models
from assayline.store.views import make_models


@pytest.fixture(scope="session")
def schema() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(config={"threads": 1})
    apply_schema(connection)
    yield connection
    connection.close()


@pytest.fixture
def store(schema: duckdb.DuckDBPyConnection) -> Iterator[Store]:
    """Empty tables for each test: its rows are deleted."""
    yield Store(schema)
    tables = "select database_name, schema_name, table_name from duckdb_tables() where table_name <> 'schema_version'"
    for database, folder, table in schema.execute(tables).fetchall():
        if folder == "raw":
            schema.execute(f"delete from raw.{table}")
            continue
        schema.execute(f"drop table {database}.{folder}.{table}")
        if database != "temp":  # of give_run_metric, in the place of a view
            make_models(schema, [list_models()[table]])


@pytest.fixture
def evaluate(schema):
    def call(expression, *arguments):
        ((found,),) = schema.execute(f"select {expression}", list(arguments)).fetchall()
        return found

    return call

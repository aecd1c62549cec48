"""A database with the whole schema, for tests of SQL models (`row_kit.py`)."""

from collections.abc import Iterator

import duckdb
import pytest
from row_kit import Store

from assayline.store.database import apply_schema


@pytest.fixture(scope="session")
def schema() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    apply_schema(connection)
    yield connection
    connection.close()


@pytest.fixture
def store(schema: duckdb.DuckDBPyConnection) -> Iterator[Store]:
    """Empty tables for each test: its rows are deleted."""
    yield Store(schema)
    tables = "select table_name from duckdb_tables() where schema_name = 'raw' and table_name <> 'schema_version'"
    for (table,) in schema.execute(tables).fetchall():
        schema.execute(f"delete from raw.{table}")

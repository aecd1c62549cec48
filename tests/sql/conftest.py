"""A database with the whole schema, for tests of SQL models (`row_kit.py`)."""

from collections.abc import Iterator

import duckdb
import pytest
from row_kit import Store

from assayline.store.database import apply_schema, list_models


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
    tables = "select schema_name, table_name from duckdb_tables() where table_name <> 'schema_version'"
    for folder, table in schema.execute(tables).fetchall():
        if folder == "raw":
            schema.execute(f"delete from raw.{table}")
        else:  # of give_run_metric, in the place of a view
            schema.execute(f"drop table {folder}.{table}")
            schema.execute(list_models()[table].text)


@pytest.fixture
def evaluate(schema):
    def call(expression, *arguments):
        ((found,),) = schema.execute(f"select {expression}", list(arguments)).fetchall()
        return found

    return call


@pytest.fixture
def ask_of_all(schema):
    """An expression's value for every case, with the cases' keys as its columns: a plan costs more than its rows."""

    def call(expression, cases, constants=(), **types):
        columns = ", ".join(f"unnest(?::{types.get(key, 'varchar')}[]) as {key}" for key in cases[0])
        query = f"select {expression} from (select unnest(range(?)) as case_number, {columns}) order by case_number"
        values = [[case[key] for case in cases] for key in cases[0]]
        try:
            found = schema.execute(query, [*constants, len(cases), *values]).fetchall()
        except duckdb.Error as error:
            if len(cases) == 1:
                raise AssertionError(f"{cases[0]}: {error}") from error
            half = len(cases) // 2
            return [
                value for some in (cases[:half], cases[half:]) for value in call(expression, some, constants, **types)
            ]
        return [value for (value,) in found]

    return call

"""Lengths of answers that earlier runs of a model gave: `recall_lengths` of sql/models, as a table."""

import duckdb
import pyarrow as pa


def recall_lengths(
    connection: duckdb.DuckDBPyConnection, model_id: str, prompt_set: str, benchmark_id: str | None
) -> pa.Table:
    """One row per prompt that was answered, in the order of their ids: prompt_id and output_tokens (median).

    `benchmark_id` is that of the run that asks, if it is part of one: what the others of its benchmark found is left
    out.
    """
    query = "select prompt_id, output_tokens from recall_lengths(?, ?, ?) order by prompt_id"
    return connection.sql(query, params=[model_id, prompt_set, benchmark_id]).to_arrow_table()

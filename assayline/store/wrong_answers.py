"""Answers that a scorer found wrong, for a person to look at."""

from typing import NamedTuple

import duckdb

LONGEST_TEXT = 2000
"""Signs of an answer that are read: an example is looked at, not kept."""


class WrongAnswer(NamedTuple):
    """One sample with less than a full score."""

    source_row: int
    repeat_index: int
    value: float
    target: str | None
    answer: str | None
    extracted: str | None
    explanation: str | None


def read_wrong_answers(connection: duckdb.DuckDBPyConnection, run_id: str, scorer: str, most: int) -> list[WrongAnswer]:
    """The worst samples by this scorer, in the order of their prompts; wrong answers before errors."""
    query = f"""
        select
            source_row, repeat_index, value, left(target, {LONGEST_TEXT}), left(answer, {LONGEST_TEXT}),
            left(extracted, {LONGEST_TEXT}), explanation
        from (select * from scores where run_id = $run_id and scorer = $scorer and value < 1) as wrong
        inner join (select * from stg_samples where run_id = $run_id) as samples
            using (run_id, prompt_id, occurrence, repeat_index)
        order by status <> 'ok', value, source_row, repeat_index
        limit $most
    """  # noqa: S608 - the number is ours
    values = {"run_id": run_id, "scorer": scorer, "most": most}
    return [WrongAnswer(*row) for row in connection.execute(query, values).fetchall()]

"""Survey of a run's answers: requests with a row, error rows included, in the database or in a part.

DuckDB counts over the parts, so Python memory grows with the number of shards, not of requests.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from assayline.media.references import find_media
from assayline.records import EARLIER_TURN, NOT_SENT
from assayline.store.ingest import describe_damage, find_damaged, list_new_parts
from assayline.store.parts import TABLES, list_parts, part_unreadable
from assayline.store.views import quote_text

ROWS_PER_FETCH = 10_000
SENT_QUERY = """
    with keep_sent as (
        select distinct on (request_id) request_id, error_kind, error_message
        from run_completions where worker <> 'prepare' and error_kind is distinct from $earlier_turn
    )
    select
        count(*) filter (where error_kind is distinct from $not_sent),
        count(*) filter (where error_kind <> $not_sent),
        max(error_message) filter (where error_kind = $not_sent)
    from keep_sent
"""
WORKER_TABLES = ("completions", "engine_events", "telemetry")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSurvey:
    """AnswerSurvey that are stored of a run."""

    answered: int
    """Requests with an answer or an error row."""
    prepared_requests: int
    prepared_prompts: int
    prepared_errors: int
    """Error rows from preparing requests, without an engine."""
    sent: int
    """Requests that were sent to an engine and have a result."""
    sent_errors: int
    """Number of `sent` that are error rows."""
    load_end: str | None
    """Reason why the rest is not sent, if an earlier attempt reached the end of the load."""
    shard_requests: dict[str, int]
    """Number of requests by shard."""
    whole_shards: frozenset[str]
    """Shards with all requests answered."""
    partly: dict[str, frozenset[str]]
    """Answered requests of partly answered shards."""
    strays: frozenset[str]
    """Answered requests without a shard: it was lost or never written."""
    first_generations: dict[str, int]
    """Number of the next engine, by worker."""

    def find_answered(self, shard: str, request_ids: Sequence[str]) -> frozenset[str]:
        """Return the answered requests of a shard."""
        if shard in self.whole_shards:
            return frozenset(request_ids)
        return self.partly.get(shard) or self.strays.intersection(request_ids)


def survey_answers(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> AnswerSurvey:
    """Survey a run that no process works on. Raises StoreError for a damaged part."""
    try:
        return _survey(connection, run_id, run_dir)
    except duckdb.Error as error:
        for table in TABLES:
            if damaged := find_damaged(table, list_parts(run_dir, table)):
                raise describe_damage(run_id, damaged) from error
        raise


def _survey(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> AnswerSurvey:
    _view_run(connection, run_id, run_dir)
    connection.execute("create or replace temp table answered as select distinct request_id from run_completions")
    connection.execute(
        "create or replace temp table shards as "
        "select filename, parse_filename(filename, true) as shard, count(*) as requests, "
        "count(answered.request_id) as answered_requests "
        "from request_parts left join answered on answered.request_id = request_parts.request_id group by filename"
    )
    partly = {
        shard: frozenset(request_id for _, request_id in rows)
        for shard, rows in groupby(_read_partly(connection), key=itemgetter(0))
    }
    shards = connection.execute("select shard, requests, answered_requests from shards").fetchall()
    strays = connection.execute(
        "select answered.request_id from answered anti join request_parts using (request_id)"
    ).fetchall()
    generations = connection.execute(
        "select worker, max(engine_generation) + 1 from run_engines group by worker"
    ).fetchall()
    never_sent = {"not_sent": NOT_SENT, "earlier_turn": EARLIER_TURN}
    [(sent, sent_errors, load_end)] = connection.execute(SENT_QUERY, never_sent).fetchall()
    return AnswerSurvey(
        answered=_count(connection, "select count(*) from answered"),
        prepared_requests=_count(connection, "select coalesce(sum(requests), 0) from shards"),
        prepared_prompts=_count(connection, "select count(*) from prompt_parts"),
        prepared_errors=_count(connection, "select count(*) from run_completions where worker = 'prepare'"),
        sent=sent,
        sent_errors=sent_errors,
        load_end=load_end,
        shard_requests={shard: requests for shard, requests, _ in shards},
        whole_shards=frozenset(shard for shard, requests, answered in shards if answered == requests),
        partly=partly,
        strays=frozenset(request_id for (request_id,) in strays),
        first_generations=dict(generations),
    )


def lacks_media(run_dir: Path) -> bool:
    """Return True if media from inside rows are missing, as in an unfinished copy. Raises StoreError."""
    for part in list_parts(run_dir, "requests"):
        try:
            with pq.ParquetFile(part) as file:
                has_column = "media_json" in file.schema_arrow.names
                texts = file.read(["media_json"])["media_json"].drop_null().to_pylist() if has_column else []
        except (OSError, pa.ArrowException) as error:
            raise part_unreadable(part, error) from error
        paths = (Path(find_media(media, run_dir)["path"]) for text in texts for media in json.loads(text))
        if any(path.is_relative_to(run_dir) and not path.exists() for path in paths):
            return True
    return False


def _view_run(connection: duckdb.DuckDBPyConnection, run_id: str, run_dir: Path) -> None:
    """Create temporary views of the run's rows, ingested or not, and of its prepared parts."""

    def rows_of(table: str, columns: str) -> str:
        loaded = f"select {columns} from {table} where run_id = {quote_text(run_id)}"  # noqa: S608 - names are ours
        return f"{loaded} union all {_read_parts(list_new_parts(connection, run_id, run_dir, table), columns)}"

    engines = " union all ".join(rows_of(table, "worker, engine_generation") for table in WORKER_TABLES)
    for name, query in {
        "run_completions": rows_of("completions", "request_id, worker, error_kind, error_message"),
        "run_engines": engines,
        "request_parts": _read_parts(list_parts(run_dir, "requests"), "request_id, filename"),
        "prompt_parts": _read_parts(list_parts(run_dir, "prompts"), "prompt_id"),
    }.items():
        connection.execute(f"create or replace temp view {name} as {query}")


def _read_partly(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, str]]:
    """Yield (shard, answered request id) of the partly answered shards, sorted by shard."""
    partly = "select filename from shards where answered_requests > 0 and answered_requests < requests"
    files = [file for (file,) in connection.execute(partly).fetchall()]
    if not files:
        return
    found = connection.execute(
        "select parse_filename(filename, true) as shard, request_id from read_parquet(?, filename = true) "
        "semi join answered using (request_id) order by shard",
        [files],
    )
    while rows := found.fetchmany(ROWS_PER_FETCH):
        yield from rows


def _read_parts(parts: list[Path], columns: str) -> str:
    """Return SQL for columns of some parts; no rows without parts."""
    if not parts:
        return "select " + ", ".join(f"null as {name}" for name in columns.split(", ")) + " where false"
    files = ", ".join(quote_text(str(part)) for part in parts)
    return f"select {columns} from read_parquet([{files}], filename = true)"  # noqa: S608 - names are ours


def _count(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0])

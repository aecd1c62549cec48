"""Stored answers of runs: those that an unfinished run has, and answers as rows of a prompt set.

A survey counts a run's requests with a row, error rows included, in the database or in a part. DuckDB counts over the
parts, so Python memory grows with the number of shards, not of requests.

Rows of `prompts.source` of kind `run` and `pairs` are joined in DuckDB and written to an unnamed file of JSON lines,
which is read while prompts are prepared: the database is not open meanwhile, and memory does not grow with the judged
run. Media are not passed on: their places in the text read `[image]`, `[audio]` or `[video]`.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import duckdb

from assayline.errors import SpecError
from assayline.files import MAKE_ROOM, storing
from assayline.media.references import find_media
from assayline.prompts.row import AnswerRow
from assayline.records import EARLIER_TURN, NOT_SENT
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import AnswersSource, PairsSource, RereadSource
from assayline.store.database import Connection, Row, read_rows
from assayline.store.ingest import describe_damage, find_damaged, list_new_parts
from assayline.store.parts import TABLES, list_parts, open_part
from assayline.store.views import quote_text
from assayline.words import nearest

RunWork = Callable[[Callable[[Connection], Any]], Any]
"""A function that runs work on the database: `DatabaseThread.run` or `read`."""

ROWS_PER_FETCH = 1_000
_COUNTS = f"""
    with keep_sent as (
        select distinct on (request_id) request_id, error_kind, error_message
        from run_completions where worker <> 'prepare' and error_kind is distinct from '{EARLIER_TURN}'
    )
    select
        (select count(*) from answered) as answered,
        (select count(*) from prompt_parts) as prepared_prompts,
        (select count(*) from run_completions where worker = 'prepare') as prepared_errors,
        count(*) filter (where error_kind is distinct from '{NOT_SENT}') as sent,
        count(*) filter (where error_kind <> '{NOT_SENT}') as sent_errors,
        max(error_message) filter (where error_kind = '{NOT_SENT}') as load_end
    from keep_sent
"""  # noqa: S608 - names are ours
WORKER_TABLES = ("completions", "engine_events", "telemetry")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSurvey:
    """Requests of an unfinished run, answered and left."""

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
    served_root: str | None
    """The files behind a running server's name for the model, as its last engine reported them."""
    vllm_version: str | None
    """Version of vLLM that its last engine reported."""

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
    shards = connection.execute(
        "select parse_filename(filename, true), filename, count(*), count(answered.request_id) "
        "from request_parts left join answered on answered.request_id = request_parts.request_id group by filename"
    ).fetchall()
    partly = [file for _, file, requests, answered in shards if 0 < answered < requests]
    strays = connection.execute(
        "select answered.request_id from answered anti join request_parts using (request_id)"
    ).fetchall()
    generations = connection.execute(
        "select worker, max(engine_generation) + 1 from run_engines group by worker"
    ).fetchall()
    [counts] = read_rows(connection, _COUNTS)
    [(served_root, vllm_version)] = connection.execute(
        "select max_by(details_json ->> '$.served_root', at_s), max_by(details_json ->> '$.vllm_version', at_s) "
        "from run_events"
    ).fetchall()
    return AnswerSurvey(
        **counts,
        prepared_requests=sum(requests for _, _, requests, _ in shards),
        shard_requests={shard: requests for shard, _, requests, _ in shards},
        whole_shards=frozenset(shard for shard, _, requests, answered in shards if answered == requests),
        partly=dict(_read_partly(connection, partly)),
        strays=frozenset(request_id for (request_id,) in strays),
        first_generations=dict(generations),
        served_root=served_root,
        vllm_version=vllm_version,
    )


def lacks_media(run_dir: Path) -> bool:
    """Return True if media from inside rows are missing, as in an unfinished copy. Raises StoreError."""
    for part in list_parts(run_dir, "requests"):
        with open_part(part) as file:
            has_column = "media_json" in file.schema_arrow.names
            texts = file.read(["media_json"])["media_json"].drop_null().to_pylist() if has_column else []
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
        "run_events": rows_of("engine_events", "at_s, details_json"),
        "request_parts": _read_parts(list_parts(run_dir, "requests"), "request_id, filename"),
        "prompt_parts": _read_parts(list_parts(run_dir, "prompts"), "prompt_id"),
    }.items():
        connection.execute(f"create or replace temp view {name} as {query}")


def _read_partly(connection: duckdb.DuckDBPyConnection, files: list[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the answered requests of each of these shards."""
    query = (
        "select parse_filename(filename, true), list(request_id) from read_parquet(?, filename = true) "
        "semi join answered using (request_id) group by filename"
    )
    for shard, answered in connection.execute(query, [files]).fetchall() if files else ():
        yield shard, frozenset(answered)


def _read_parts(parts: list[Path], columns: str) -> str:
    """Return SQL for columns of some parts; no rows without parts."""
    if not parts:
        return "select " + ", ".join(f"null as {name}" for name in columns.split(", ")) + " where false"
    files = ", ".join(quote_text(str(part)) for part in parts)
    return f"select {columns} from read_parquet([{files}], filename = true)"  # noqa: S608 - names are ours


_SAMPLES = """
select
    prompts.source_row,
    samples.prompt_id,
    samples.occurrence,
    samples.repeat_index as repeat,
    prompts.source_id as id,
    list_transform(
        coalesce(conversations.messages, cast(prompts.messages_json as json[])), lambda message: write_content(message)
    ) as messages,
    samples.answer,
    answers.reasoning,
    prompts.target,
    prompts.options,
    answers.finish_reason,
    coalesce(scored.scores, map([]::varchar[], []::double[])) as scores,
    cast(prompts.metadata_json as json) as metadata
from (
    select * from stg_samples where run_id = ${run} and status = 'ok' and answer is not null
) as samples
inner join (select * from prompt where run_id = ${run}) as prompts using (prompt_id, occurrence)
inner join (select * from one_answer where run_id = ${run}) as answers using (request_id)
left join (
    select prompt_id, occurrence, repeat_index, map(list(scorer), list(value)) as scores
    from scores where run_id = ${run} group by all
) as scored using (prompt_id, occurrence, repeat_index)
left join (
    select
        prompt_id, occurrence, repeat_index,
        flatten(list(
            list_concat(
                cast(turn_messages_json as json[]),
                case when turn_index < turns - 1 then [json_object('role', 'assistant', 'content', text)] else [] end
            )
            order by turn_index
        )) as messages
    from (select * from one_request where run_id = ${run} and turn_index is not null)
    inner join (select * from one_answer where run_id = ${run}) using (request_id)
    group by all
) as conversations using (prompt_id, occurrence, repeat_index)
"""
"""A run's generated answers. In a conversation: the answer to the last turn; messages have the model's earlier ones."""

_WRITE_CONTENT = """
create or replace temp macro write_content(message) as
case
    when json_type(message, '$.content') = 'ARRAY' then json_merge_patch(message, json_object(
        'content',
        array_to_string(
            list_transform(
                cast(json_extract(message, '$.content') as json[]),
                lambda part: coalesce(
                    json_extract_string(part, '$.text'), '[' || json_extract_string(part, '$.type') || ']'
                )
            ),
            chr(10)
        )
    ))
    else message
end
"""
_VERDICTS = """
select judged_prompt_id as prompt_id, judged_occurrence as occurrence, judged_repeat_index as repeat
from judgement
where judged_run_id = $run_a and list_contains($judges::varchar[], judge_run_id) and status in ('judged', 'error')
"""
"""Answers with a verdict, or an error row, in the runs `not_judged_by`."""

_LAST_QUESTION = """
json_extract_string(
    list_filter(messages, lambda message: json_extract_string(message, '$.role') = 'user')[-1], '$.content'
)
"""

ANSWER_COLUMNS = (
    "id", "prompt", "messages", "answer", "reasoning", "target", "options", "repeat", "finish_reason", "scores",
)  # fmt: skip
PAIR_COLUMNS = ("id", "prompt", "messages", "target", "options", "repeat", "first", "second")
ORDER = "source_row, prompt_id, occurrence, repeat"

StoredAnswers = AnswersSource | PairsSource


def find_newest_run(connection: Connection, name: str) -> str:
    """Return the id of the newest completed run of a spec's name. Raises SpecError if there is none."""
    found = connection.execute(
        "select run_id from runs where name = ? and state = 'completed' order by started_at desc limit 1", [name]
    ).fetchall()
    if found:
        return str(found[0][0])
    names = connection.execute("select distinct name from runs where state = 'completed'").fetchall()
    known = nearest(name, [str(known) for (known,) in names]) if names else "no run is completed"
    raise SpecError(f"No completed run has the name {name!r}; {known}. hint: `assayline list runs` lists them.")


def check_answers(connection: Connection, source: StoredAnswers) -> None:
    """Raise SpecError if a source has no rows, or if `where` cannot be used."""
    if count_answers(connection, source):
        return
    if source.where is not None and (without := count_answers(connection, source.model_copy(update={"where": None}))):
        raise SpecError(
            f"prompts.source.where keeps none of {without} rows: {source.where}. hint: try the condition with "
            "--dry-run, or leave it out."
        )
    if isinstance(source, PairsSource):
        raise SpecError(
            f"Runs {' and '.join(source.runs)} have no answers to the same prompts. hint: name two runs over the same "
            "prompts: the same messages and targets."
        )
    if source.not_judged_by:
        raise SpecError(
            f"Every answer of run {source.run} has a verdict or an error in {', '.join(source.not_judged_by)}."
        )
    raise SpecError(
        f"Run {source.run} has no generated answers. hint: name a run with answers; a run with the scorer "
        "loglikelihood generates none, and error rows are left out."
    )


def count_answers(connection: Connection, source: StoredAnswers) -> int:
    """Return the number of rows of a source. Raises SpecError if `where` cannot be used."""
    query = f"select count(*) from ({_select_rows(source)}) where {_define_where(connection, source)}"  # noqa: S608 - names are ours
    with _explaining_where(source):
        return int(connection.execute(query, _name_runs(source)).fetchall()[0][0])


READABLE = """
    select
        request_id, prompt_id, occurrence, repeat_index, source_id, messages_json, prompt_token_ids, rendered,
        output_token_ids, text
    from request
    inner join (
        select run_id, request_id, prompt_token_ids, rendered, output_token_ids, text from answer where run_id = $1
    ) using (run_id, request_id)
    inner join (
        select run_id, prompt_id, occurrence, source_id, messages_json from prompt where run_id = $1
    ) using (run_id, prompt_id, occurrence)
    where run_id = $1 and status = 'ok' and repeat_index = 0 and option_index is null and turn_index is null
        and images is null and audios is null and videos is null
        and len(prompt_token_ids) > 0 and len(output_token_ids) > 0
    order by prompt_id, occurrence
    limit $2
"""
"""Answers whose token ids are known: one a prompt, in an order that is by chance and always the same."""


def read_readable(connection: Connection, run_id: str, limit: int | None) -> list[Row]:
    """Return the answers that another engine can read, with their token ids. Raises SpecError if there is none."""
    if rows := read_rows(connection, READABLE, run_id, limit or 2**62):
        return rows
    raise SpecError(
        f"Run {run_id} has no answer that an engine can read: token ids of a text prompt and of its answer are needed. "
        "hint: name a run of an engine in this process or of endpoint completions; turns, options and media are left "
        "out."
    )


def open_answers(
    spec: EvalSpec, run: RunWork, folder: Path | None = None
) -> Iterator[AnswerRow] | Iterator[Row] | None:
    """Return the rows of a spec whose prompts are stored answers; None for another spec.

    They are in an unnamed file in the folder (None: the system's) until they are read. Raises SpecError or StoreError.
    """
    source = spec.prompts.source
    if isinstance(source, RereadSource):
        rows: list[Row] = run(lambda connection: read_readable(connection, source.run, spec.prompts.limit))
        return iter(rows)
    if not isinstance(source, AnswersSource | PairsSource):
        return None
    file = tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)  # noqa: SIM115 - _read_lines closes it

    def write(connection: Connection) -> None:
        file.seek(0)
        file.truncate()  # if memory ran out, the work is repeated
        _write_lines(connection, source, file)

    with storing("The answers of the judged run cannot be written", MAKE_ROOM):
        run(write)
        file.flush()
    return _read_lines(file)


def _write_lines(connection: Connection, source: StoredAnswers, file: IO[str]) -> None:
    """Write the rows of a source to a file, in order, as JSON lines for `_read_lines`. Raises SpecError."""
    condition = _define_where(connection, source)
    order = ORDER + (", shown" if isinstance(source, PairsSource) else "")
    with _explaining_where(source):
        connection.execute(
            f"create or replace temp table answer_rows as select * from ({_select_rows(source)}) where {condition}",  # noqa: S608 - names are ours
            _name_runs(source),
        )
    try:
        found = connection.execute(f"from answer_rows order by {order}")
        names = [str(column[0]) for column in found.description or ()]
        while rows := found.fetchmany(ROWS_PER_FETCH):
            for values in rows:
                row, origin = _make_row(source, dict(zip(names, values, strict=True)))
                file.write(json.dumps([row, origin], ensure_ascii=False) + "\n")
    finally:
        connection.execute("drop table answer_rows")


def _read_lines(file: IO[str]) -> Iterator[AnswerRow]:
    """Yield the rows of a file, and close it."""
    with file:
        file.seek(0)
        for line in file:
            yield AnswerRow(*json.loads(line))


def _make_row(source: StoredAnswers, found: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return a row's columns and its origin. A reserved column replaces a metadata column of the same name."""
    key = {"prompt_id": found["prompt_id"], "occurrence": found["occurrence"], "repeat_index": found["repeat"]}
    runs = [{"run_id": run_id, **key} for run_id in source.runs]
    origin: dict[str, object] = {"source": runs[0]}
    if isinstance(source, PairsSource):
        origin |= {"other": runs[1], "first": found["shown"]}
    messages: Sequence[str] = found["messages"]  # type: ignore[assignment]
    found["messages"] = [json.loads(message) for message in messages]
    metadata: dict[str, object] = json.loads(str(found["metadata"]))
    return {**metadata, **{name: found[name] for name in _list_columns(source)}}, origin


def _list_columns(source: StoredAnswers) -> tuple[str, ...]:
    return PAIR_COLUMNS if isinstance(source, PairsSource) else ANSWER_COLUMNS


def _name_runs(source: StoredAnswers) -> dict[str, Any]:
    """Return the parameters of `_select_rows`."""
    if isinstance(source, AnswersSource):
        return {"run_a": source.run, "judges": source.not_judged_by}
    return dict(zip(("run_a", "run_b"), source.runs, strict=True))


def _select_rows(source: StoredAnswers) -> str:
    """Return the query of a source's rows, without an order."""
    rows = f"select *, {_LAST_QUESTION} as prompt from ({_SAMPLES.format(run='run_a')})"  # noqa: S608 - names are ours
    if isinstance(source, AnswersSource):
        return f"select * from ({rows}) anti join ({_VERDICTS}) using (prompt_id, occurrence, repeat)"  # noqa: S608 - names are ours
    return f"""
        with pairs as (
            select a.* exclude (answer, scores), a.answer as answer_a, b.answer as answer_b
            from ({rows}) as a
            inner join ({_SAMPLES.format(run="run_b")}) as b using (prompt_id, occurrence, repeat)
        )
        select *, 'a' as shown, answer_a as first, answer_b as second from pairs
        union all
        select *, 'b' as shown, answer_b as first, answer_a as second from pairs
    """  # noqa: S608 - names are ours


def _define_where(connection: Connection, source: StoredAnswers) -> str:
    """Define the condition as a macro over the columns, and return its call. Raises SpecError unless it is one."""
    connection.execute(_WRITE_CONTENT)
    if source.where is None:
        return "true"
    columns = ", ".join([*_list_columns(source), "metadata"])
    statement = f"create or replace temp macro keep_row({columns}) as (\n{source.where}\n)"
    with _explaining_where(source):
        if len(connection.extract_statements(statement)) != 1:
            raise duckdb.ParserException("Parser Error: it closes a parenthesis that it does not open")
        connection.execute(statement)
    return f"keep_row({columns})"


@contextmanager
def _explaining_where(source: StoredAnswers) -> Iterator[None]:
    """Convert an error in the condition to a SpecError; other errors, such as a full disk, pass."""
    try:
        yield
    except (duckdb.ProgrammingError, duckdb.DataError) as error:
        if source.where is None:
            raise
        reason = str(error).splitlines()[0].partition(": ")[2].rstrip(".")
        columns = ", ".join([*_list_columns(source), "metadata"])
        raise SpecError(
            f"prompts.source.where cannot be used: {reason}; given {source.where}. hint: write one SQL condition over "
            f"{columns}."
        ) from None

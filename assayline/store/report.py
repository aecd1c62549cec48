"""What a report shows of a run: rows of the SQL models, few enough for a page whatever the size of the run.

No metric is computed here, and none is from these rows later: queries choose, sort and cut. A text comes with its
length and no more than its first `TEXT_CHARACTERS`, as one answer may be megabytes.
"""

from dataclasses import dataclass
from typing import Any

import duckdb

from assayline.store.models import read_metric_table, read_rows, read_run_summary
from assayline.store.report_load import LoadRows, read_load

Row = dict[str, Any]

TEXT_CHARACTERS = 1_500
SLOWEST = 5
EVENTS = 100
ENGINES = 50
ERROR_KINDS = 20
ERROR_SAMPLES = 3
WORST = 5
BEST = 3
OPTIONS = 26
OPTION_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class ReportRows:
    """One run's rows, each list in the order in which it is shown."""

    run: Row
    summary: Row
    metrics: list[Row]
    """As in the table at the end of a run."""
    accuracy: list[Row]
    pass_at_k: list[Row]
    """Rows only where prompts were asked repeatedly, as of `majority_vote`."""
    majority_vote: list[Row]
    percentiles: list[Row]
    histogram: list[Row]
    activity: list[Row]
    engines: list[Row]
    first_opened: Row | None
    """What the first engine said of itself when it opened: `details_json`."""
    events: list[Row]
    """What happened to engines, without the openings and closings that every run has."""
    errors: list[Row]
    error_samples: list[Row]
    slowest: list[Row]
    worst: list[Row]
    """Samples of prompts that were not right, those that scored least first; by the run's first scorer."""
    best: list[Row]
    load: LoadRows | None
    """None for a run without a load."""


def read_report(connection: duckdb.DuckDBPyConnection, run_id: str) -> ReportRows:
    """Reads a run that the database has, staged or not. Raises StoreError where it has not."""

    def of_run(query: str, *values: Any) -> list[Row]:
        return read_rows(connection, query, run_id, *values)

    summary = read_run_summary(connection, run_id)
    return ReportRows(
        run=of_run("select * from runs where run_id = ?")[0],
        summary=summary,
        metrics=read_metric_table(connection, run_id),
        accuracy=of_run("select * from accuracy where run_id = ? order by ordinal, scorer"),
        pass_at_k=of_run("select * from pass_at_k where run_id = ? order by scorer, k"),
        majority_vote=of_run("select * from majority_vote where run_id = ? order by scorer"),
        percentiles=_by_metric(connection, run_id, "latency_percentile", "percentile"),
        histogram=_by_metric(connection, run_id, "latency_histogram", "from_s"),
        activity=of_run("select * from activity where run_id = ? order by begins_at_s"),
        engines=of_run(
            "select * from engine_history where run_id = ? order by worker, engine_generation limit ?", ENGINES
        ),
        first_opened=next(iter(of_run(_FIRST_OPENED)), None),
        events=of_run(_EVENTS, EVENTS),
        errors=of_run(_ERRORS, ERROR_KINDS),
        error_samples=of_run(_ERROR_SAMPLES, ERROR_SAMPLES),
        slowest=of_run(_SLOWEST, SLOWEST),
        worst=of_run(_select_samples("mean_value < 1", "asc"), WORST),
        best=of_run(_select_samples("mean_value > 0", "desc"), BEST),
        load=read_load(connection, run_id),
    )


def _by_metric(connection: duckdb.DuckDBPyConnection, run_id: str, model: str, order: str) -> list[Row]:
    """A model's rows, one latency after another: a percentile keeps all its values in memory."""
    query = f"select * from {model} where run_id = ? and metric = ? order by {order}"  # noqa: S608 - names are ours
    return [row for metric in ("ttft_s", "tpot_s", "e2e_s") for row in read_rows(connection, query, run_id, metric)]


def _cut(column: str) -> str:
    """SQL for the beginning of a text under its own name."""
    return f"left({column}, {TEXT_CHARACTERS}) as {column.rpartition('.')[2]}"


def cut_and_count(column: str, name: str | None = None) -> str:
    """The same, with the length of the whole beside it; under another name, if one is given."""
    name = name or column.rpartition(".")[2]
    return f"left({column}, {TEXT_CHARACTERS}) as {name}, length({column}) as {name}_characters"


def _select_samples(which: str, direction: str) -> str:
    """SQL for one sample of each of the prompts that come first: of equal ones by their digest, so from anywhere.

    $1 is the run, named wherever rows are read, as no filter goes through a join; $2 is how many prompts.
    """
    return f"""
    with

    choose_scorer as (
        select run_id, scorer from accuracy where run_id = $1 order by ordinal limit 1
    ),

    choose_prompts as (
        select prompt_score.*
        from prompt_score
        join choose_scorer on choose_scorer.run_id = prompt_score.run_id and choose_scorer.scorer = prompt_score.scorer
        where prompt_score.run_id = $1 and {which}
        order by mean_value {direction}, prompt_id, occurrence
        limit $2
    ),

    choose_samples as (
        select
            scores.*,
            choose_prompts.mean_value,
            choose_prompts.samples
        from scores
        join choose_prompts
            on choose_prompts.run_id = scores.run_id
            and choose_prompts.scorer = scores.scorer
            and choose_prompts.prompt_id = scores.prompt_id
            and choose_prompts.occurrence = scores.occurrence
        where scores.run_id = $1
        qualify row_number() over (
            partition by scores.prompt_id, scores.occurrence order by scores.value {direction}, scores.repeat_index
        ) = 1
    ),

    read_reasoning as (
        select request_id, any_value(reasoning) as reasoning
        from completions
        where run_id = $1 and reasoning is not null
        group by request_id
    )

    select
        choose_samples.scorer,
        choose_samples.prompt_id,
        choose_samples.value,
        choose_samples.mean_value,
        choose_samples.samples,
        {cut_and_count("choose_samples.extracted")},
        {cut_and_count("choose_samples.explanation")},
        stg_samples.source_row,
        stg_samples.status,
        {cut_and_count("stg_samples.answer")},
        {cut_and_count("stg_samples.target")},
        {cut_and_count("stg_samples.error_message")},
        list_transform(stg_samples.options[:{OPTIONS}], lambda option: left(option, {OPTION_CHARACTERS})) as options,
        stg_samples.option_logprobs[:{OPTIONS}] as option_logprobs,
        {cut_and_count("read_reasoning.reasoning")},
        {cut_and_count("requests.rendered")}
    from choose_samples
    join stg_samples
        on stg_samples.run_id = choose_samples.run_id
        and stg_samples.prompt_id = choose_samples.prompt_id
        and stg_samples.occurrence = choose_samples.occurrence
        and stg_samples.repeat_index = choose_samples.repeat_index
    left join requests
        on requests.run_id = $1 and requests.request_id = stg_samples.request_id
    left join read_reasoning on read_reasoning.request_id = stg_samples.request_id
    where stg_samples.run_id = $1
    order by choose_samples.mean_value {direction}, choose_samples.prompt_id, choose_samples.occurrence
    """  # noqa: S608 - names are ours


_FIRST_OPENED = """
    select * from engine_events where run_id = ? and event = 'opened' order by at_s, worker limit 1
"""
_EVENTS = f"""
    select worker, attempt, engine_generation, event, at_s, {_cut("message")}
    from engine_events
    where run_id = ? and event in ('failed', 'reduced', 'isolated', 'restored', 'grown')
    order by at_s, worker, engine_generation
    limit ?
"""  # noqa: S608 - names are ours
_ERRORS = f"""
    select * replace ({_cut("example_message")})
    from error_breakdown
    where run_id = ?
    order by error_requests desc, error_kind, worker
    limit ?
"""  # noqa: S608 - names are ours
_ERROR_SAMPLES = f"""
    with

    choose_requests as (
        select run_id, request_id, prompt_id, error_kind, error_message
        from stg_requests
        where run_id = ? and status = 'error'
        qualify row_number() over (partition by error_kind order by finished_at_s nulls last, request_id) = 1
        order by error_kind
        limit ?
    )

    select
        choose_requests.request_id,
        choose_requests.prompt_id,
        choose_requests.error_kind,
        {cut_and_count("choose_requests.error_message")},
        {cut_and_count("requests.rendered")}
    from choose_requests
    join requests on requests.run_id = choose_requests.run_id and requests.request_id = choose_requests.request_id
    order by choose_requests.error_kind
"""  # noqa: S608 - names are ours
_SLOWEST = """
    select request_id, prompt_id, e2e_s, ttft_s, tpot_s, queue_s, prompt_tokens, output_tokens, finish_reason
    from stg_requests
    where run_id = ? and status = 'ok' and e2e_s is not null
    order by e2e_s desc, request_id
    limit ?
"""

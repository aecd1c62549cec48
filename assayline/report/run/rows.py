"""Rows of the SQL models that a run report shows, few enough for a page whatever the size of the run.

Queries select, sort and truncate; they compute no metric. Texts are cut to `TEXT_CHARACTERS` and come with their full
length, because one answer may be megabytes.
"""

from dataclasses import dataclass, replace
from typing import Any

from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import (
    REPORT_FOLDERS,
    SOURCE_FOLDER,
    compute_runs,
    list_unmeasured,
    list_warnings,
    measure_runs,
    read_metric_table,
    read_run_summary,
)


@dataclass(frozen=True, slots=True)
class LoadRows:
    """Rows of a run with a load."""

    load: Row
    goodput: list[Row]
    send_lag: Row | None
    """None in a closed loop, like the next."""
    saturation: Row | None
    clients: list[Row]
    end: Row | None
    """The event load_ended, if sending stopped before the last prompt."""
    stretches: list[Row]
    """Measured interval of each engine, between warm-up and cool-down; empty without these periods."""
    gaps: list[Row]
    """Percentiles of ITL, the gaps between token events, if their times were recorded."""


def read_load(connection: Connection, run_id: str) -> LoadRows | None:
    """Read the load of a stored run; None if it has none."""

    def of_run(query: str) -> list[Row]:
        return read_rows(connection, query, run_id)

    load = _first(of_run("select * from loads where run_id = ?"))
    if load is None:
        return None
    return LoadRows(
        load=load,
        goodput=of_run("select * from goodput where run_id = ? order by slo"),
        send_lag=_first(of_run("select * from send_lag where run_id = ?")),
        saturation=_first(of_run("select * from saturation where run_id = ?")),
        clients=of_run("select * from client_health where run_id = ? order by p99_s desc"),
        end=_first(of_run("select * from engine_events where run_id = ? and event = 'load_ended' order by at_s")),
        stretches=of_run(
            "select * from load_stretch where run_id = ? and has_windows and stretch_s is not null order by begins_at_s"
        ),
        gaps=of_run("select * from itl_percentile where run_id = ? and gaps > 0 order by percentile"),
    )


def _first(rows: list[Row]) -> Row | None:
    return next(iter(rows), None)


TEXT_CHARACTERS = 1_500
SLOWEST = 5
EVENTS = 100
ENGINES = 50
TURNS = 50
ERROR_KINDS = 20
ERROR_SAMPLES = 3
WORST = 5
BEST = 3
VALUES = 20
OPTIONS = 26
OPTION_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRows:
    """Rows of one run, each list in display order."""

    run: Row
    summary: Row
    metrics: list[Row]
    """As in the table printed at the end of a run."""
    accuracy: list[Row]
    pass_at_k: list[Row]
    """Rows only if prompts were repeated; likewise `majority_vote`."""
    majority_vote: list[Row]
    percentiles: list[Row]
    turns: list[Row]
    """Turns of conversations."""
    histogram: list[Row]
    activity: list[Row]
    telemetry: list[Row]
    """Device and scheduler telemetry, by the slices of `activity`."""
    devices: list[Row]
    engines: list[Row]
    drafts: list[Row]
    """Positions of speculative decoding's drafts, if there were any."""
    forecast: Row | None
    """Accuracy of the expected output lengths, if there were any."""
    first_opened: Row | None
    """`details_json` that the first engine reported when it opened."""
    events: list[Row]
    """Engine events, without the openings and closings of every run."""
    errors: list[Row]
    error_samples: list[Row]
    slowest: list[Row]
    worst: list[Row]
    """Incorrect samples by the run's first scorer, lowest score first."""
    groups: list[Row]
    """Mean scores by finish reason and metadata, and frequent wrong answers."""
    best: list[Row]
    warnings: list[str]
    """Warnings about the answers; see `list_warnings`."""
    load: LoadRows | None
    """None for a run without a load."""
    energy: Row | None
    """None without GPU samples."""
    cost: Row
    """Without a currency if the run has no price."""


def read_report(connection: Connection, run_id: str) -> ReportRows:
    """Read the report rows of a stored run, and store its metrics if they are missing.

    Both read one scratch database, since making it takes longer than the metrics of a small run. Raises StoreError if
    the run is missing.
    """
    if list_unmeasured(connection, [run_id]):
        computed = measure_runs(connection, [run_id], (*REPORT_FOLDERS, SOURCE_FOLDER))
    else:
        computed = compute_runs(connection, [run_id], REPORT_FOLDERS)
    with computed:
        rows = _read_rows(connection, run_id)
    return replace(rows, metrics=read_metric_table(connection, run_id))


def _read_rows(connection: Connection, run_id: str) -> ReportRows:
    """Read what depends on the run alone: all but its metrics, which count its judges."""

    def of_run(query: str, *values: Any) -> list[Row]:
        return read_rows(connection, query, run_id, *values)

    summary = read_run_summary(connection, run_id)
    load = read_load(connection, run_id)
    return ReportRows(
        run=of_run("select runs.*, obstacle from runs left join run_conditions using (run_id) where run_id = ?")[0],
        summary=summary,
        metrics=[],
        accuracy=of_run("select * from accuracy where run_id = ? order by ordinal, scorer"),
        pass_at_k=of_run("select * from pass_at_k where run_id = ? order by scorer, k"),
        majority_vote=of_run("select * from majority_vote where run_id = ? order by scorer"),
        percentiles=of_run(_LATENCIES.format("latency_percentile", "percentile")),
        turns=of_run("select * from turn_latency where run_id = ? order by turn_index limit ?", TURNS),
        histogram=of_run(_LATENCIES.format("latency_histogram", "from_s")),
        activity=of_run("select * from activity where run_id = ? order by begins_at_s"),
        telemetry=of_run("select * from telemetry_activity where run_id = ? order by begins_at_s"),
        devices=of_run("select * from device_use where run_id = ? order by worker, device limit ?", ENGINES),
        engines=of_run(
            "select * from engine_history where run_id = ? order by worker, engine_generation limit ?", ENGINES
        ),
        drafts=of_run("select * from draft_use where run_id = ? and drafts > 0 order by position"),
        forecast=_first(of_run("select * from length_forecast where run_id = ?")),
        first_opened=next(iter(of_run(_FIRST_OPENED)), None),
        events=of_run(_EVENTS, EVENTS),
        errors=of_run(_ERRORS, ERROR_KINDS),
        error_samples=of_run(_ERROR_SAMPLES, ERROR_SAMPLES),
        slowest=of_run(_SLOWEST, SLOWEST),
        worst=of_run(_SAMPLES, 1, WORST),
        best=of_run(_SAMPLES, -1, BEST),
        groups=of_run("select * replace (left(value, 200) as value) from show_groups(?, ?)", VALUES),
        warnings=list_warnings(connection, run_id),
        load=load,
        energy=_first(of_run("select * from run_energy where run_id = ?")),
        cost=of_run("select * from run_cost where run_id = ?")[0],
    )


def _cut(column: str) -> str:
    """Return SQL for the beginning of a text, under the column's own name."""
    return f"left({column}, {TEXT_CHARACTERS}) as {column}"


def cut_and_count(column: str) -> str:
    """Return SQL for the beginning of a text and its full length."""
    return f"{_cut(column)}, length({column}) as {column}_characters"


_LATENCIES = """
    select * from {0} where run_id = ? and metric in ('ttft_s', 'tpot_s', 'e2e_s')
    order by list_position(['ttft_s', 'tpot_s', 'e2e_s'], metric), {1}
"""
_FIRST_OPENED = """
    select * from engine_events where run_id = ? and event = 'opened' order by at_s, worker limit 1
"""
_EVENTS = f"""
    select worker, attempt, engine_generation, event, at_s, {_cut("message")}
    from engine_events
    where run_id = ? and event in ('failed', 'reduced', 'isolated', 'restored', 'grown', 'idle')
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
    select
        request_id, prompt_id, error_kind, {cut_and_count("error_message")}, {cut_and_count("rendered")},
        (
            select min(source_row) from prompts
            where prompts.run_id = $1 and prompts.prompt_id = shown.prompt_id
        ) as source_row
    from show_errors($1, $2) as shown
"""  # noqa: S608 - names are ours
_SAMPLES = f"""
    select
        scorer, prompt_id, value, mean_value, samples, source_row, status, finish_reason, media_json,
        {", ".join(map(cut_and_count, ("extracted", "explanation", "answer", "target", "error_message")))},
        {", ".join(map(cut_and_count, ("reasoning", "rendered")))},
        list_transform(options[:{OPTIONS}], lambda option: left(option, {OPTION_CHARACTERS})) as options,
        option_logprobs[:{OPTIONS}] as option_logprobs
    from show_samples(?, ?, ?)
"""  # noqa: S608 - names are ours
_SLOWEST = """
    select request_id, prompt_id, e2e_s, ttft_s, tpot_s, queue_s, prompt_tokens, output_tokens, finish_reason
    from stg_requests
    where run_id = ? and status = 'ok' and e2e_s is not null
    order by e2e_s desc, request_id
    limit ?
"""

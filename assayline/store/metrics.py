"""Metrics of a run: stored when the run ends, read by everything else, and shown as a table.

    store_metrics(connection, [run_id])

`measure.py` computes the rows of `metric_values`; `measured_runs` has a row per run with a digest of the definitions.
Code that changes a run's rows calls `forget_metrics` in the same transaction, and code that reads `metric_values` calls
`ensure_metrics` first, so stored metrics always match rows and definitions.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import duckdb

from assayline.errors import StoreError
from assayline.scorers.process import UNREAD_TARGET
from assayline.spec.named import find_by_source
from assayline.store.database import Row, is_read_only, read_rows, transaction
from assayline.store.measure import define_metrics, measure_runs
from assayline.words import name_metric, show_changes, show_share

MOST_RUNS, MOST_REQUESTS = 50, 100_000
"""Most runs that are measured together, and most requests of several.

Planning costs more than a small run, and requests take memory."""


class UnmeasuredError(StoreError):
    """Metrics that a reader needs are not stored."""

    def __init__(self, run_ids: Sequence[str]) -> None:
        super().__init__(
            f"The metrics of {len(run_ids)} runs are not stored yet. hint: run `assayline report --leaderboard`."
        )
        self.run_ids = list(run_ids)


def store_metrics(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> None:
    """Compute and store the metrics of these runs, in transactions. Raises UnmeasuredError if it cannot write."""
    if is_read_only(connection):
        raise UnmeasuredError(run_ids)
    definitions, now = define_metrics(), datetime.now(UTC).replace(tzinfo=None)
    values = {"names": list(definitions), "digests": list(definitions.values()), "now": now}
    for batch in _batch(connection, run_ids):
        with transaction(connection):
            forget_metrics(connection, *batch)
            measure_runs(connection, *batch)
            connection.execute(_PREPARED, {"run_ids": batch, **values})


def _batch(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield the runs that are measured together."""
    query = "select run_id, count(*) from raw.requests where list_contains(?::varchar[], run_id) group by run_id"
    sizes = dict(connection.execute(query, [list(run_ids)]).fetchall())
    batch, rows = list[str](), 0
    for run_id in run_ids:
        rows += sizes.get(run_id, 0)
        if batch and (rows > MOST_REQUESTS or len(batch) == MOST_RUNS):
            yield batch
            batch, rows = [], sizes.get(run_id, 0)
        batch.append(run_id)
    if batch:
        yield batch


_PREPARED = """
    insert into raw.measured_runs by name
    select
        run_id,
        map($names::varchar[], $digests::varchar[]) as definitions,
        prompts_digest,
        expected > 0 as is_longest_first,
        $now as measured_at
    from (select unnest($run_ids::varchar[]) as run_id)
    left join (
        -- in no order: the sum, bit by bit, of a digest per prompt row
        select
            run_id, to_hex(bit_xor(md5_number_lower(prompt_id || '/' || cast(occurrence as varchar)))) as prompts_digest
        from raw.prompts
        where list_contains($run_ids::varchar[], run_id)
        group by run_id
    ) using (run_id)
    left join (
        select run_id, count(expected_output_tokens) as expected
        from raw.requests
        where list_contains($run_ids::varchar[], run_id)
        group by run_id
    ) using (run_id)
"""


def forget_metrics(connection: duckdb.DuckDBPyConnection, *run_ids: str) -> None:
    """Delete what is stored about these runs: metrics, ranks, audits, comparisons, in the caller's transaction."""
    for table in ("measured_runs", "metric_values"):
        query = f"delete from raw.{table} where list_contains(?::varchar[], run_id)"  # noqa: S608 - names are ours
        connection.execute(query, [list(run_ids)])
    for query in _FORGET:
        connection.execute(query, {"run_ids": list(run_ids)})


_FORGET = (
    """
    delete from raw.rankings
    where (kind, names) in (
        select (kind, names) from raw.rankings where list_has_any($run_ids::varchar[], list_append(names, run_id))
    )
    """,
    "delete from raw.comparisons where list_has_any($run_ids::varchar[], [run_id, baseline_run_id])",
    """
    delete from raw.judge_audits
    where list_has_any($run_ids::varchar[], judges || [judged_run_id, other_run_id])
    """,
)


def list_unmeasured(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str] | None = None) -> list[str]:
    """List the finished runs among these (default: all) without metrics of the current definitions."""
    definitions = define_metrics()
    query = """
        select run_id
        from raw.runs
        left join raw.measured_runs using (run_id)
        where state <> 'running'
            and definitions is distinct from map(?::varchar[], ?::varchar[])
            and coalesce(list_contains(?::varchar[], run_id), true)
        order by started_at, run_id
    """
    values = [list(definitions), list(definitions.values()), None if run_ids is None else list(run_ids)]
    return [run_id for (run_id,) in connection.execute(query, values).fetchall()]


def ensure_metrics(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str] | None = None) -> None:
    """Store the missing metrics of finished runs among these (default: all)."""
    if wanted := list_unmeasured(connection, run_ids):
        store_metrics(connection, wanted)


def ensure_repeats(connection: duckdb.DuckDBPyConnection, *run_ids: str, only_benchmarks: bool = False) -> None:
    """Store the missing metrics of these runs and of all runs, or those of benchmarks, with the same configurations."""
    query = """
        select run_id
        from raw.runs
        where list_contains($run_ids::varchar[], run_id)
            or config_id in (select config_id from raw.runs where list_contains($run_ids::varchar[], run_id))
            and (benchmark_id is not null or not $only_benchmarks)
    """
    values = {"run_ids": run_ids, "only_benchmarks": only_benchmarks}
    ensure_metrics(connection, [run_id for (run_id,) in connection.execute(query, values).fetchall()])


def ensure_benchmark(connection: duckdb.DuckDBPyConnection, benchmark_id: str) -> None:
    """Store the missing metrics of the runs of a benchmark."""
    query = "select run_id from raw.runs where benchmark_id = ?"
    ensure_metrics(connection, [run_id for (run_id,) in connection.execute(query, [benchmark_id]).fetchall()])


class Shown(NamedTuple):
    """A row of `metric_values` in the table at the end of a run, with its label."""

    metric: str
    statistic: str
    words: str
    only_above: int | None = None
    """Omit the row unless its value exceeds this, for events that most runs lack."""


SHOWN = (
    Shown("ok_requests", "total", "answered"),
    Shown("error_requests", "total", "errors"),
    Shown("missing_requests", "total", "missing", only_above=0),
    Shown("unsent_requests", "total", "not sent, as the load or the run had ended", only_above=0),
    Shown("retried_requests", "total", "sent more than once", only_above=0),
    Shown("context_limited_requests", "total", "cut off by the context", only_above=0),
    Shown("truncated_requests", "total", "cut off by max_tokens", only_above=0),
    Shown("accuracy", "mean", "{accuracy}"),
    Shown("pass@k", "mean", "{metric} ({detail})"),
    Shown("majority_vote", "mean", "majority vote ({detail})"),
    Shown("unasked_rows", "total", "rows that could not be asked", only_above=0),
    Shown("duration_s", "total", "generation"),
    Shown("downtime_s", "total", "of it without an engine at work", only_above=0),
    Shown("lost_s", "total", "of it lost to engine failures", only_above=0),
    Shown("requests_per_s", "mean", name_metric("requests_per_s")),
    Shown("output_tokens_per_s", "mean", name_metric("output_tokens_per_s")),
    *(Shown("ttft_s", statistic, name_metric(f"ttft_{statistic}_s")) for statistic in ("p50", "p95")),
    Shown("tpot_s", "p50", name_metric("tpot_p50_s")),
    *(Shown("e2e_s", statistic, name_metric(f"e2e_{statistic}_s")) for statistic in ("p50", "p95")),
    Shown("good_share", "mean", "good requests ({detail})"),
    Shown("good_requests_per_s", "mean", name_metric("good_requests_per_s") + " ({detail})"),
    Shown("send_lag_s", "p99", "sent late, p99"),
    Shown("images_per_s", "mean", "images"),
    Shown("megapixels_per_s", "mean", "pixels of images"),
    Shown("audio_s_per_s", "mean", "audio seconds per second (RTFx)"),
    Shown("video_s_per_s", "mean", "seconds of video per second"),
    Shown("media_tokens_per_s", "mean", "throughput, prompt tokens of media"),
    Shown("text_tokens_per_s", "mean", "throughput, prompt tokens of text"),
    Shown("media_prepare_s", "p50", "preparing media, p50"),
    Shown("media_prepare_s", "p95", "preparing media, p95"),
    Shown("prefix_cache_hit_rate", "mean", "prefix cache hits", only_above=0),
    Shown("acceptance_length", "mean", "tokens per step with a draft", only_above=0),
    Shown("draft_acceptance", "mean", "draft tokens accepted", only_above=0),
    Shown("load_s", "total", name_metric("load_s")),
    Shown("warmup_s", "total", name_metric("warmup_s")),
    Shown("attempts", "total", "attempts", only_above=1),
    Shown("resume_load_s", "total", "engine starts of later attempts", only_above=0),
    Shown("engine_failures", "total", "engine failures", only_above=0),
    Shown("rebuilds", "total", "engine rebuilds", only_above=0),
    Shown("recovery_s", "total", "from failure to ready again", only_above=0),
    Shown("reductions", "total", "reductions", only_above=0),
    Shown("isolated_requests", "total", "requests that kill engines", only_above=0),
    Shown("energy_joules", "total", "energy of GPUs"),
    Shown("idle_joules", "total", "of it with no engine at work"),
    Shown("mean_power_watts", "mean", "power of GPUs, mean"),
    Shown("energy_per_output_token_joules", "mean", name_metric("energy_per_output_token_joules")),
    Shown("energy_per_request_joules", "mean", name_metric("energy_per_request_joules")),
    Shown("output_tokens_per_joule", "mean", "output tokens per joule"),
    Shown("cost", "total", "cost, loading and downtime included"),
    Shown("cost_per_million_output_tokens", "mean", name_metric("cost_per_million_output_tokens")),
    Shown("cost_per_thousand_requests", "mean", name_metric("cost_per_thousand_requests")),
    Shown("cost_per_right_answer", "mean", name_metric("cost_per_right_answer")),
    Shown("full_cost_per_right_answer", "mean", name_metric("full_cost_per_right_answer")),
)
"""Rows in display order; reports and `metric_value` have the others."""

USUAL_K = (5, 10, 100)
"""The k of shown pass@k, besides the one of all samples; pass@1 is the mean."""

_VALUES = """
    select
        case when starts_with(metric, 'pass@') then 'pass@k' else metric end as kind,
        try_cast(replace(metric, 'pass@', '') as integer) as k,
        case scorers.kind when 'code' then format('pass@1 ({})', detail) when 'judge' then detail
            when 'verdict' then format('mean verdict ({})', detail)
            else format('accuracy ({})', detail) end as accuracy,
        metric, statistic, detail, value, low, high, n, unit
    from metric_values
    left join (select run_id, scorer, ordinal, kind from scorers) as scorers
        on scorers.run_id = metric_values.run_id and scorers.scorer = metric_values.detail
    where metric_values.run_id = ? and (value is not null or detail is null)
    qualify k is null or list_contains(?, k) or k = max(k) over (partition by detail)
    order by ordinal, detail, k
"""
_HARNESS = """
    select
        replace(scorers.scorer, aggregate.key || ': ', '') as scorer,
        aggregate.key as task,
        cast(aggregate.value as double) as value
    from scorers, json_each(scorers.arguments_json, '$.harness') as aggregate
    where scorers.run_id = ? and scorers.kind = 'lm_eval'
    order by scorers.ordinal, task
"""


def read_notes(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[str]:
    """Return remarks for the user on a finished run: what its scores and its speed may not mean."""
    notes: list[str | None] = [_tell_reductions(connection, run_id), *list_warnings(connection, run_id)]
    query = """
        select obstacle, prompts_digest, prompt_rows, spec_json -> '$.prompts.source' as source_json
        from run_conditions
        join runs using (run_id)
        where run_id = ?
    """
    for row in read_rows(connection, query, run_id):
        if benchmark := find_by_source(json.loads(row["source_json"] or "{}")):
            notes.append(benchmark.describe_difference(row["prompt_rows"], row["prompts_digest"]))
        if obstacle := row["obstacle"]:
            notes.append(f"The run's speed does not count among the repeats of its configuration: {obstacle}.")
    return [note for note in notes if note]


def _tell_reductions(connection: duckdb.DuckDBPyConnection, run_id: str) -> str:
    """Return what engines got less of after they ran out of memory, and the time that it took; empty if nothing."""
    query = """
        select
            string_agg(details_json, '|' order by at_s) as changes,
            (select any_value(value) from metric_values where run_id = $1 and metric = 'recovery_s') as recovery_s
        from engine_events
        where run_id = $1 and event = 'reduced'
    """
    ((changes, recovery_s),) = connection.execute(query, [run_id]).fetchall()
    if not changes:
        return ""
    took = "" if recovery_s is None else f" Recovery took {recovery_s:.0f} s, which tokens/s leave out."
    return f"Out of memory, so reduced: {'; '.join(map(show_changes, changes.split('|')))}.{took}"


MOST_UNREAD = 0.1
"""Share of answers or targets without meaning for a scorer, from which a scored run has a warning."""

GUESS = "only the last of several"
"""Words for answers that rest on a last resort, whose share is always told."""

_FOUND = f"""
    select
        scorer,
        case kind when 'numeric' then 'number' when 'choice' then 'letter' end as what,
        count(*) as n,
        count(*) filter (where not regexp_matches(answer, '\\S')) as empty,
        count(*) filter (where truncated) as truncated,
        count(*) filter (where contains(answer, '</think>')) as thinking,
        count(*) filter (where what is not null and extracted is null) as unread,
        count(*) filter (where found_by = 'last') as guessed,
        count(*) filter (where regexp_matches(explanation, '{UNREAD_TARGET}')) as targets,
        count(*) filter (where kind = 'json' and has_form and value = 0 and truncated is not true) as outside
    from scores
    inner join (select run_id, scorer, kind, ordinal from scorers) as scorers using (run_id, scorer)
    inner join (
        select run_id, prompt_id, occurrence, repeat_index, request_id, answer, truncated from stg_samples
    ) as samples using (run_id, prompt_id, occurrence, repeat_index)
    inner join (
        select run_id, request_id, (sampling_json -> '$.structured_outputs.json') is not null as has_form from requests
    ) as forms using (run_id, request_id)
    where run_id = ? and error_kind is null
    group by scorer, kind, ordinal
    order by ordinal
"""  # noqa: S608 - the condition is ours


_SERVED = """
    with answers as (
        select *, count(*) over () as n
        from (select * from stg_requests where run_id = $1 and status = 'ok' and retries is not null)
        inner join (
            select request_id, len(prompt_token_ids) as sent_tokens, media_json from one_request where run_id = $1
        ) using (request_id)
    )
    select words, any_value(n) as n, count(*) as found
    from (
        select n, unnest([
            case when response_model <> $2 then 'the model name ' || response_model || ' instead of ' || $2 end,
            case when finish_reason not in ('stop', 'length', 'repetition') then 'finish_reason ' || finish_reason end,
            case when media_json is null and sent_tokens > 0 and prompt_tokens <> sent_tokens
                then 'a prompt of another length than was sent' end,
            case when output_tokens > max_tokens then 'more tokens than max_tokens' end,
            case when hidden_tokens > 0 then 'reasoning tokens that were not sent (not in TPOT)' end,
            case when decode_s = 0 and streamed_tokens > 2 then 'all tokens at one moment (no TPOT)' end
        ]) as words
        from answers
    )
    where words is not null
    group by words
    order by found desc, words
    limit 10
"""


_OVERLOADED = """
    select string_agg(words, ', and ' order by words desc) from (
        select case metric
            when 'kept_up' then 'sent requests late, so the load was lighter'
            when 'client_kept_up' then 'read events late, so latencies are too high'
        end as words
        from metric_values
        where run_id = $1 and value = 0 and metric in ('kept_up', 'client_kept_up')
    )
"""


def list_warnings(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[str]:
    """Return warnings about a run: an overloaded client, what its server reports, and scores that mean little."""
    [(late,)] = connection.execute(_OVERLOADED, [run_id]).fetchall()
    overload = late and f"The client was overloaded: it {late}. hint: lower the load, or give the client free cores."
    asked = "select any_value(details_json ->> '$.served_model') as model from engine_events where run_id = ?"
    [served] = read_rows(connection, asked, run_id)
    rows = read_rows(connection, _SERVED, run_id, served["model"]) if served["model"] else []
    told = ", ".join(f"{row['words']} in {row['found']:,}" for row in rows)
    words = f"The server reports {told} of {rows[0]['n']:,} answers." if rows else None
    return [warning for warning in (overload, words, warn_unread(connection, run_id)) if warning]


def warn_unread(connection: duckdb.DuckDBPyConnection, run_id: str) -> str | None:
    """Return a warning if the scores of a tenth of a run's answers mean little; the counts are those of `_FOUND`."""
    sentences = []
    for place, row in enumerate(read_rows(connection, _FOUND, run_id)):
        of_run = {
            "nothing": row["empty"],
            "more than max_tokens": row["truncated"],
            "thinking that only `reasoning` in the spec separates": row["thinking"],
        }
        of_scorer = {
            f"no {row['what']} in the answer": row["unread"],
            f"{GUESS} {row['what']}s": row["guessed"],
            f"no {row['what'] or 'option'} in the target": row["targets"],
            "another form than the demanded one": row["outside"],
        }
        sides = ("The model wrote", of_run), (f"{row['scorer']} found", of_scorer)
        for subject, found in sides[place > 0 :]:
            shares = {words: n / row["n"] for words, n in found.items()}
            told = [
                f"{words} in {show_share(share)}"
                for words, share in shares.items()
                if share >= MOST_UNREAD or (share and words.startswith(GUESS))
            ]
            if told:
                sentences.append(f"{subject} {', '.join(told)} of {row['n']:,} answers.")
    hint = (
        "hint: ask for the form of the answer in the prompt, or raise sampling.max_tokens; docs/guides/scoring.md says "
        "how an answer is found."
    )
    return " ".join([*sentences, hint]) if sentences else None


def read_metric_table(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Return the metrics of a finished run, a row each: metric, value, unit, low, high, n, source.

    `metric` is the label, `source` the metric and statistic in metric_value. `low` and `high` are the ends of a 95%
    interval. Events that did not happen are omitted; values that were not measured are None.
    """
    ensure_metrics(connection, [run_id])
    found: dict[tuple[str, str], list[Row]] = {}
    for row in read_rows(connection, _VALUES, run_id, USUAL_K):
        found.setdefault((row["kind"], row["statistic"]), []).append(row)
    table = []
    for shown in SHOWN:
        for row in found.get((shown.metric, shown.statistic), ()):
            if shown.only_above is None or (row["value"] or 0) > shown.only_above:
                source = {"source": f"{row['metric']} {row['statistic']}"}
                cells = {name: row[name] for name in ("unit", "value", "low", "high", "n")}
                table.append({"metric": shown.words.format(**row), **source, **cells})
        if shown.metric == "majority_vote":
            table += _list_aggregates(connection, run_id)
    return table + _list_judging(connection, run_id)


def _list_judging(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Return time and cost of the runs that judge this one; none for other runs."""
    known: Row = next((row for row in list_judging_costs(connection, run_id) if row["part"] == "judges"), {})
    table = (
        ("judging, generation", "run.judging_s", known.get("duration_s"), "s"),
        ("judging, output tokens", "run.judging_output_tokens", known.get("output_tokens"), "tokens"),
        ("judging, cost, loading and downtime included", "run.judging_cost", known.get("cost"), known.get("currency")),
    )
    return [
        {"metric": metric, "source": source, "value": value, "unit": unit, "low": None, "high": None, "n": None}
        for metric, source, value, unit in table
        if value is not None
    ]


def list_judging_costs(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Return time and cost of a run, of each run that judges its answers, and of these together; none without judges.

    Rows have part (model, judge or judges), rubric, run_id, model, state, load_s, duration_s, output_tokens, and cost
    in currency: of the whole run, including loading and downtime, None without a price and for a sum of two currencies.
    """
    own, *judges = read_rows(connection, _JUDGING_COSTS, run_id) or [{}]
    if not judges:
        return []
    together: Row = {**dict.fromkeys(own), "part": "judges", "currency": judges[0]["currency"]}
    for name in ("load_s", "duration_s", "output_tokens", "cost"):
        if known := [row[name] for row in judges if row[name] is not None]:
            together[name] = sum(known)
    if any(row["cost"] is None or row["currency"] != together["currency"] for row in judges):
        together["cost"] = None
    return [own, *judges, together]


_JUDGING_COSTS = """
    select
        part,
        rubric,
        run_id,
        model,
        state,
        max(value) filter (metric = 'load_s') as load_s,
        max(value) filter (metric = 'duration_s') as duration_s,
        cast(max(value) filter (metric = 'output_tokens') as bigint) as output_tokens,
        max(value) filter (metric = 'cost') as cost,
        max(unit) filter (metric = 'cost') as currency
    from (
        select 'model' as part, null as rubric, run_id, model, state, started_at from raw.runs where run_id = $1
        union all
        select 'judge', rubric, judge_run_id, model, state, started_at from judge_run where run_id = $1
    )
    left join (from raw.metric_values where statistic = 'total' and detail is null) using (run_id)
    group by part, rubric, run_id, model, state, started_at
    order by part desc, rubric, started_at, run_id
"""


def _list_aggregates(connection: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Return the aggregates of lm-evaluation-harness for each task and group; none for other runs."""
    return [
        {
            "metric": f"{row['task']} ({row['scorer']})", "source": "scorers.arguments_json", "unit": "as lm-eval",
            "value": row["value"], "low": None, "high": None, "n": None,
        }
        for row in read_rows(connection, _HARNESS, run_id)
    ]  # fmt: skip

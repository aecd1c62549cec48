"""Audits of judges: measured from their verdicts, and stored for any reader."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from assayline.stats.judges import MEASURES, audit_judge
from assayline.store.database import Connection, Row, is_read_only, read_rows, transaction
from assayline.store.runs import insert_rows

ENDS = {"": "value", "_low": "low", "_high": "high"}
COUNTS = (
    "requests", "judged_requests", "unreadable_requests", "error_requests", "missing_requests", "labelled_requests",
    "unknown_labels",
)  # fmt: skip


def audit_judges(connection: Connection, run_ids: Sequence[str]) -> list[Row]:
    """Audit the judges of these runs and their panels; judges first, then panels. A reader stores nothing.

    Rows have judges (their runs), scorer, judged_run_id, other_run_id, the counts of requests, and the measures of
    `audit_judge` by name, each with the ends of its interval, such as kappa, kappa_low and kappa_high. None is
    undefined.
    """
    collect_verdicts(connection, run_ids)
    now = datetime.now(UTC).replace(tzinfo=None)
    audits, stores = [], not is_read_only(connection)
    with transaction(connection):
        for judge in read_rows(connection, _JUDGES):
            votes = connection.execute(_VOTES, {name: judge[name] for name in _VOTERS}).fetchnumpy()
            measures = audit_judge({name: np.asarray(column) for name, column in votes.items()})
            counted = [{"measure": name, "value": judge[name]} for name in COUNTS]
            key = {name: value for name, value in judge.items() if name not in COUNTS}
            known = [key["judges"], key["scorer"]]
            if stores:
                connection.execute("delete from judge_audits where judges = ? and scorer = ?", known)
                rows = [{**key, **row, "audited_at": now} for row in [*counted, *measures]]
                insert_rows(connection, "judge_audits", rows)
            found = {f"{row['measure']}{end}": row[name] for row in measures for end, name in ENDS.items()}
            audits.append({**dict.fromkeys(f"{name}{end}" for name in MEASURES for end in ENDS), **judge, **found})
    return audits


_JUDGES = """
    select
        list(distinct judge_run_id order by judge_run_id) as judges,
        scorer,
        any_value(judged_run_id) as judged_run_id,
        any_value(other_run_id) as other_run_id,
        count(*) as requests,
        count(*) filter (status = 'judged') as judged_requests,
        count(*) filter (status = 'unreadable') as unreadable_requests,
        count(*) filter (status = 'error') as error_requests,
        count(*) filter (status = 'missing') as missing_requests,
        count(label_value) filter (status = 'judged') as labelled_requests,
        count(label) filter (status = 'judged' and label_value is null) as unknown_labels
    from verdict_of_judge
    group by grouping sets ((scorer, judge_run_id), (scorer, judged_run_id, other_run_id))
    having grouping(judge_run_id) = 0 or len(judges) > 1
    order by len(judges) > 1, judges, scorer, judged_run_id, other_run_id
"""
"""Judges, and panels: the judges of one run, or pair of runs, with a scorer of the same name."""
_VOTERS = ("judges", "scorer", "judged_run_id", "other_run_id")
_VOTES = """
    select
        dense_rank() over (order by ballot_key) as ballot,
        dense_rank() over (order by shown_key) as shown,
        dense_rank() over (order by answer, repeat) as pair,
        dense_rank() over (order by cluster_key) as cluster,
        category,
        count(*) as votes,
        sum(value) as total,
        sum(value ** 2) as squares,
        coalesce(any_value(label_category), '') as label_category,
        coalesce(any_value(label_value), 'nan') as label_value,
        coalesce(any_value(first), '') as first,
        cast(coalesce(any_value(longer), 0) as integer) as longer,
        any_value(has_scale) as has_scale
    from (
        select
            *,
            len($judges) > 1 as is_panel,
            concat_ws(' ', answer, first) as shown_key,
            case when is_panel then shown_key else concat_ws(' ', prompt_id, occurrence, repeat_index) end
                as ballot_key,
            case when is_panel then 0 else repeat_index end as repeat
        from verdict_of_judge
        where status = 'judged'
            and scorer = $scorer
            and list_contains($judges, judge_run_id)
            and (not is_panel or judged_run_id = $judged_run_id and other_run_id is not distinct from $other_run_id)
    )
    group by ballot_key, shown_key, answer, repeat, cluster_key, category
"""
"""Verdicts by ballot and word. The ballot, which is compared with a label, has the verdict of a request, or in a panel
those of all requests on one answer, or on one pair in one order."""


def collect_verdicts(connection: Connection, run_ids: Sequence[str]) -> None:
    """Make the temporary table `verdict_of_judge`: the rows of `judgement` of these judges.

    More columns: has_scale; cluster_key, the judged prompt's value of prompts.columns.cluster, else the prompt; answer,
    the key of the judged answer, or of the pair in either order; category and label_category, verdict and label as
    unordered words, which for pairs and scales are numbers; longer, 1 if answer a has more characters than answer b, −1
    if fewer, else 0, NULL without pairs.
    """
    connection.execute(_COLLECT, {"run_ids": list(run_ids)})


_COLLECT = """
    create or replace temp table verdict_of_judge as
    with found as (
        select
            *,
            concat_ws(
                ' ', judged_run_id, judged_prompt_id, judged_occurrence, judged_repeat_index, other_run_id,
                other_repeat_index
            ) as answer,
            has_scale or other_run_id is not null as is_number,
            case when is_number then cast(round(value, 6) as varchar) else verdict end as category,
            case
                when label_value is null then null
                when is_number then cast(round(label_value, 6) as varchar)
                else label
            end as label_category
        from find_judgements($run_ids::varchar[])
        join (
            select run_id as judge_run_id, scorer, arguments_json ->> '$.scale' is not null as has_scale
            from raw.scorers
        ) using (judge_run_id, scorer)
    ),
    texts as (
        select
            requests.run_id, prompt_id, occurrence, repeat_index,
            arg_min(length(completions.text), coalesce(finished_at_s, 0)) as characters
        from raw.requests
        join raw.completions using (run_id, request_id)
        where requests.run_id in (
                select unnest([judged_run_id, other_run_id]) from found where other_run_id is not null
            )
            and option_index is null
            and coalesce(turn_index = turns - 1, true)
            and error_kind is null
        group by all
    )
    select
        found.*,
        coalesce(cluster, judged_prompt_id) as cluster_key,
        case when other_run_id is not null then sign(judged.characters - other.characters) end as longer
    from found
    left join texts as judged
        on (judged.run_id, judged.prompt_id, judged.occurrence, judged.repeat_index)
        = (judged_run_id, judged_prompt_id, judged_occurrence, judged_repeat_index)
    left join texts as other
        on (other.run_id, other.prompt_id, other.occurrence, other.repeat_index)
        = (other_run_id, other_prompt_id, other_occurrence, other_repeat_index)
    left join internal.prompt_cluster as clusters
        on clusters.run_id = judged_run_id
        and clusters.prompt_id = judged_prompt_id
        and clusters.occurrence = judged_occurrence
"""

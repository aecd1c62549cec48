-- Grain: one row per request of a judge's run × scorer of kind verdict.
--
-- `run_ids` is a list of run ids of judges; NULL for all. The runs are selected wherever rows are read, as no filter
-- goes through a join.
--
-- The columns are those of judgement.
create or replace macro internal.find_judgements(run_ids) as table
with

judges as (
    select
        run_id,
        scorer,
        arguments_json ->> '$.label' as label_column,
        cast(arguments_json -> '$.values' as map(varchar, double)) as word_values,
        try_cast(arguments_json ->> '$.scale[0]' as double) as scale_low,
        try_cast(arguments_json ->> '$.scale[1]' as double) as scale_high
    from raw.scorers
    where kind = 'verdict' and (run_ids is null or list_contains(run_ids, run_id))
),

requests as (
    select distinct on (run_id, request_id) run_id, prompt_id, occurrence, repeat_index
    from raw.requests
    where run_id in (select run_id from judges)
        and option_index is null
        and coalesce(turn_index = turns - 1, true)
),

sources as (
    select
        judges.* rename (run_id as judge_run_id),
        requests.* exclude (run_id),
        metadata_json,
        metadata_json ->> '$.source.run_id' as judged_run_id,
        metadata_json ->> '$.source.prompt_id' as judged_prompt_id,
        try_cast(metadata_json ->> '$.source.occurrence' as integer) as judged_occurrence,
        try_cast(metadata_json ->> '$.source.repeat_index' as integer) as judged_repeat_index,
        metadata_json ->> '$.other.run_id' as other_run_id,
        metadata_json ->> '$.other.prompt_id' as other_prompt_id,
        try_cast(metadata_json ->> '$.other.occurrence' as integer) as other_occurrence,
        try_cast(metadata_json ->> '$.other.repeat_index' as integer) as other_repeat_index,
        case when other_run_id is not null then metadata_json ->> '$.first' end as first
    from judges
    join requests using (run_id)
    join (from main.prompt where run_id in (select run_id from judges)) using (run_id, prompt_id, occurrence)
),

-- A label of another rubric answers another question. One without a rubric counts if it is among the judge's words.
own_labels as (
    select judge_run_id, scorer, prompt_id, occurrence, repeat_index, arg_max(label, labelled_at) as own_label
    from sources
    join (select run_id, prompt_id, occurrence, repeat_index, rubric, label, labelled_at from main.label) as labels(
        judged_run_id, judged_prompt_id, judged_occurrence, judged_repeat_index, own_rubric, label, labelled_at
    ) using (judged_run_id, judged_prompt_id, judged_occurrence, judged_repeat_index)
    where other_run_id is null
        and case
            when own_rubric is null then list_contains(map_keys(word_values), label)
            else (judge_run_id, judged_run_id, own_rubric) in (
                select (judge_run_id, run_id, rubric) from internal.judge_run
            )
        end
    group by all
),

-- If the judged run is not in this database, its metadata columns may be among the judge's own.
labels as (
    select
        sources.*,
        coalesce(own_label, coalesce(judged.metadata_json, sources.metadata_json) ->> ('$."' || label_column || '"'))
            as label,
        case
            when scale_high > scale_low then (try_cast(label as double) - scale_low) / (scale_high - scale_low)
            when other_run_id is null then word_values[label]
            when label = 'a' then 1
            when label = 'b' then 0
            when word_values[label] = 0.5 then 0.5
        end as label_number
    from sources
    left join own_labels using (judge_run_id, scorer, prompt_id, occurrence, repeat_index)
    left join (
        from main.prompt where run_id in (select judged_run_id from sources where label_column is not null)
    ) as judged
        on judged.run_id = judged_run_id
        and judged.prompt_id = judged_prompt_id
        and judged.occurrence = judged_occurrence
)

select
    judge_run_id,
    scorer,
    prompt_id,
    occurrence,
    repeat_index,
    judged_run_id,
    judged_prompt_id,
    judged_occurrence,
    judged_repeat_index,
    other_run_id,
    other_prompt_id,
    other_occurrence,
    other_repeat_index,
    first,
    case
        when scores.value is null then 'missing'
        when scores.error_kind is null then 'judged'
        when scores.error_kind = 'unreadable' then 'unreadable'
        else 'error'
    end as status,
    case when status = 'judged' then scores.extracted end as verdict,
    case when status = 'judged' then scores.value end as value,
    case when status = 'judged' then scores.explanation end as reason,
    label,
    case when label_number between 0 and 1 then cast(label_number as double) end as label_value
from labels
left join (select * rename (run_id as judge_run_id) from raw.scores) as scores
    using (judge_run_id, scorer, prompt_id, occurrence, repeat_index);

comment on macro table internal.find_judgements is 'find_judgements(run_ids), a list of run ids of judges, or NULL for all: the rows of judgement.';

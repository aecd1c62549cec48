-- Grain: one row per request of a judge's run × scorer of kind verdict.
--
-- `run_ids` is a list of run ids of judges; NULL for all. The runs are selected wherever rows are read, as no filter
-- goes through a join.
--
-- The columns are those of judgement.
create or replace macro internal.find_judgements(run_ids) as table
with

find_judges as (
    select run_id, scorer, arguments_json
    from raw.scorers
    where kind = 'verdict' and (run_ids is null or list_contains(run_ids, run_id))
),

read_requests as (
    select distinct on (run_id, request_id) run_id, prompt_id, occurrence, repeat_index
    from raw.requests
    where run_id in (select run_id from find_judges)
        and option_index is null
        and coalesce(turn_index = turns - 1, true)
),

read_prompts as (
    select distinct on (run_id, prompt_id, occurrence) run_id, prompt_id, occurrence, metadata_json
    from raw.prompts
    where run_id in (select run_id from find_judges)
),

find_sources as (
    select
        find_judges.run_id as judge_run_id,
        find_judges.scorer,
        find_judges.arguments_json,
        find_judges.arguments_json ->> '$.label' as label_column,
        read_requests.prompt_id,
        read_requests.occurrence,
        read_requests.repeat_index,
        read_prompts.metadata_json,
        read_prompts.metadata_json ->> '$.source.run_id' as judged_run_id,
        read_prompts.metadata_json ->> '$.source.prompt_id' as judged_prompt_id,
        try_cast(read_prompts.metadata_json ->> '$.source.occurrence' as integer) as judged_occurrence,
        try_cast(read_prompts.metadata_json ->> '$.source.repeat_index' as integer) as judged_repeat_index,
        read_prompts.metadata_json ->> '$.other.run_id' as other_run_id,
        read_prompts.metadata_json ->> '$.other.prompt_id' as other_prompt_id,
        try_cast(read_prompts.metadata_json ->> '$.other.occurrence' as integer) as other_occurrence,
        try_cast(read_prompts.metadata_json ->> '$.other.repeat_index' as integer) as other_repeat_index,
        case when other_run_id is not null then read_prompts.metadata_json ->> '$.first' end as first
    from find_judges
    join read_requests using (run_id)
    join read_prompts using (run_id, prompt_id, occurrence)
),

read_judged_prompts as (
    select distinct on (run_id, prompt_id, occurrence) run_id, prompt_id, occurrence, metadata_json
    from raw.prompts
    where run_id in (select judged_run_id from find_sources where label_column is not null)
),

find_rubrics as (
    select judge_run_id, run_id as judged_run_id, any_value(rubric) as rubric
    from internal.judge_run
    group by judge_run_id, run_id
),

-- A label of another rubric answers another question. One without a rubric counts if it is among the judge's words.
find_own_labels as (
    select
        find_sources.judge_run_id,
        find_sources.scorer,
        find_sources.prompt_id,
        find_sources.occurrence,
        find_sources.repeat_index,
        arg_max(label.label, label.labelled_at) as own_label
    from find_sources
    left join find_rubrics using (judge_run_id, judged_run_id)
    join main.label
        on label.run_id = judged_run_id
        and label.prompt_id = judged_prompt_id
        and label.occurrence = judged_occurrence
        and label.repeat_index = judged_repeat_index
    where find_sources.other_run_id is null
        and case
            when label.rubric is not null then label.rubric = find_rubrics.rubric
            else list_contains(json_keys(arguments_json, '$.values'), label.label)
        end
    group by all
),

find_labels as (
    select
        find_sources.*,
        -- A judged run that is not in this database: its metadata columns may be among the judge's own.
        coalesce(
            own_label,
            coalesce(read_judged_prompts.metadata_json, find_sources.metadata_json)
                ->> ('$."' || label_column || '"')
        ) as label,
        cast(arguments_json -> '$.values' as map(varchar, double)) as word_values,
        try_cast(arguments_json ->> '$.scale[0]' as double) as scale_low,
        try_cast(arguments_json ->> '$.scale[1]' as double) as scale_high
    from find_sources
    left join find_own_labels using (judge_run_id, scorer, prompt_id, occurrence, repeat_index)
    left join read_judged_prompts
        on read_judged_prompts.run_id = judged_run_id
        and read_judged_prompts.prompt_id = judged_prompt_id
        and read_judged_prompts.occurrence = judged_occurrence
),

value_labels as (
    select
        *,
        case
            when scale_high > scale_low
            then (try_cast(label as double) - scale_low) / (scale_high - scale_low)
            when other_run_id is null then word_values[label]
            when label = 'a' then 1
            when label = 'b' then 0
            when word_values[label] = 0.5 then 0.5
        end as label_number
    from find_labels
),

join_scores as (
    select
        value_labels.judge_run_id,
        value_labels.scorer,
        value_labels.prompt_id,
        value_labels.occurrence,
        value_labels.repeat_index,
        value_labels.judged_run_id,
        value_labels.judged_prompt_id,
        value_labels.judged_occurrence,
        value_labels.judged_repeat_index,
        value_labels.other_run_id,
        value_labels.other_prompt_id,
        value_labels.other_occurrence,
        value_labels.other_repeat_index,
        value_labels.first,
        case
            when scores.run_id is null then 'missing'
            when scores.error_kind is null then 'judged'
            when scores.error_kind = 'unreadable' then 'unreadable'
            else 'error'
        end as status,
        case when status = 'judged' then scores.extracted end as verdict,
        case when status = 'judged' then scores.value end as value,
        case when status = 'judged' then scores.explanation end as reason,
        value_labels.label,
        case when label_number between 0 and 1 then cast(label_number as double) end as label_value
    from value_labels
    left join raw.scores
        on scores.run_id = value_labels.judge_run_id
        and scores.scorer = value_labels.scorer
        and scores.prompt_id = value_labels.prompt_id
        and scores.occurrence = value_labels.occurrence
        and scores.repeat_index = value_labels.repeat_index
)

select * from join_scores;

comment on macro table internal.find_judgements is 'find_judgements(run_ids), a list of run ids of judges, or NULL for all: the rows of judgement.';

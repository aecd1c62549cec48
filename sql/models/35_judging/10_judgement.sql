-- Grain: one row per request of a judge's run × scorer of kind verdict.
-- A judge is a run whose prompts are the stored answers of another run. Its prompts' metadata name the judged answer.
create or replace view main.judgement as
with

find_sources as (
    select
        scorers.run_id as judge_run_id,
        scorers.scorer,
        scorers.arguments_json,
        scorers.arguments_json ->> '$.label' as label_column,
        one_request.prompt_id,
        one_request.occurrence,
        one_request.repeat_index,
        prompt.metadata_json,
        prompt.metadata_json ->> '$.source.run_id' as judged_run_id,
        prompt.metadata_json ->> '$.source.prompt_id' as judged_prompt_id,
        try_cast(prompt.metadata_json ->> '$.source.occurrence' as integer) as judged_occurrence,
        try_cast(prompt.metadata_json ->> '$.source.repeat_index' as integer) as judged_repeat_index,
        prompt.metadata_json ->> '$.other.run_id' as other_run_id,
        prompt.metadata_json ->> '$.other.prompt_id' as other_prompt_id,
        try_cast(prompt.metadata_json ->> '$.other.occurrence' as integer) as other_occurrence,
        try_cast(prompt.metadata_json ->> '$.other.repeat_index' as integer) as other_repeat_index,
        case when other_run_id is not null then prompt.metadata_json ->> '$.first' end as first
    from raw.scorers
    join internal.one_request on one_request.run_id = scorers.run_id
    join main.prompt
        on prompt.run_id = scorers.run_id
        and prompt.prompt_id = one_request.prompt_id
        and prompt.occurrence = one_request.occurrence
    where scorers.kind = 'verdict'
        and one_request.option_index is null
        and coalesce(one_request.turn_index = one_request.turns - 1, true)
),

read_judged_prompts as (
    select distinct on (run_id, prompt_id, occurrence) run_id, prompt_id, occurrence, metadata_json
    from raw.prompts
    where run_id in (select judged_run_id from find_sources where label_column is not null)
),

find_labels as (
    select
        find_sources.*,
        -- A judged run that is not in this database: its metadata columns may be among the judge's own.
        coalesce(read_judged_prompts.metadata_json, find_sources.metadata_json)
            ->> ('$."' || label_column || '"') as label,
        cast(arguments_json -> '$.values' as map(varchar, double)) as word_values,
        try_cast(arguments_json ->> '$.scale[0]' as double) as scale_low,
        try_cast(arguments_json ->> '$.scale[1]' as double) as scale_high
    from find_sources
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

comment on view main.judgement is 'One row per request of a judge''s run × scorer of kind verdict: the judged answer, the verdict on it and a person''s label. For pairs, two answers to one prompt, shown in either order.';
comment on column main.judgement.judge_run_id is 'The judge''s run.';
comment on column main.judgement.scorer is 'Its scorer, as in scorers.';
comment on column main.judgement.prompt_id is 'The judge''s prompt.';
comment on column main.judgement.occurrence is 'Which of the judge''s rows with that prompt_id.';
comment on column main.judgement.repeat_index is '0-based repeat of the judge''s prompt.';
comment on column main.judgement.judged_run_id is 'Run of the judged answer; for pairs, of answer a.';
comment on column main.judgement.judged_prompt_id is 'Prompt of the judged answer.';
comment on column main.judgement.judged_occurrence is 'Which of the judged run''s rows with that prompt_id.';
comment on column main.judgement.judged_repeat_index is '0-based repeat that gave the judged answer.';
comment on column main.judgement.other_run_id is 'Run of answer b. NULL unless the judge compares pairs, like the next four columns.';
comment on column main.judgement.other_prompt_id is 'Prompt of answer b.';
comment on column main.judgement.other_occurrence is 'Which of that run''s rows with that prompt_id.';
comment on column main.judgement.other_repeat_index is '0-based repeat that gave answer b.';
comment on column main.judgement.first is 'Answer that was shown first: a or b.';
comment on column main.judgement.status is 'judged: there is a verdict; unreadable: the judge''s answer has none; error: the request failed; missing: no score (yet). Only judged rows have a verdict, value and reason.';
comment on column main.judgement.verdict is 'The verdict as the judge wrote it: a word of the scorer''s values, or a number of its scale.';
comment on column main.judgement.value is 'The verdict as a number from 0 to 1; for pairs that of answer a: 1 if it wins, 0.5 for a tie.';
comment on column main.judgement.reason is 'The judge''s reason.';
comment on column main.judgement.label is 'A person''s verdict: the metadata column of the judged prompt that the scorer''s label names. NULL if there is none.';
comment on column main.judgement.label_value is 'The label as a number from 0 to 1, as value; for pairs a is 1, b is 0, and the word for a tie is 0.5. NULL if label is not one of these words or a number of the scale.';

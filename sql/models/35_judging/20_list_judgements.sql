-- Grain: one row per judgement of the given judge runs, and again per judgement of each panel.
--
-- `run_ids` is a list of run ids of judges. A panel is all of them that judge the same run, or pair of runs, with a
-- scorer of the same name, if there are at least two.
--
-- judge_index: number of the judge or panel: judge run × scorer, or scorer × judged runs.
-- is_panel: whether it is a panel.
-- judge_run_id: the judge's run.
-- scorer: the scorer, as in judgement.
-- judged_run_id: the judged run; for pairs, of answer a.
-- other_run_id: the run of answer b. NULL without pairs.
-- first: answer that was shown first, a or b. NULL without pairs.
-- cluster: the unit of independent evidence: the judged prompt's value of prompts.columns.cluster, else the prompt.
-- answer: key of the judged answer, or of the pair in either order.
-- shown: the same with the order of the pair.
-- ballot: the verdict that is compared with a label: that of a request, or in a panel that of all requests on `shown`.
-- repeat_index: 0-based repeat of the judge's prompt; 0 in a panel.
-- status: see judgement.
-- value: see judgement.
-- category: the verdict, as one of unordered words; for pairs and scales, value as text.
-- label: see judgement.
-- label_value: see judgement.
-- label_category: the label, as category. NULL if label_value is.
-- has_scale: whether verdicts are numbers of a scale.
-- longer: 1 if answer a has more characters than answer b, −1 if fewer, else 0. NULL without pairs.
create or replace macro internal.list_judgements(run_ids) as table
with

read_judgements as (
    select
        judgement.*,
        scorers.arguments_json ->> '$.scale' is not null as has_scale,
        concat_ws(
            ' ',
            judged_run_id,
            judged_prompt_id,
            judged_occurrence,
            judged_repeat_index,
            other_run_id,
            other_repeat_index
        ) as answer
    from internal.find_judgements(run_ids) as judgement
    join raw.scorers on scorers.run_id = judgement.judge_run_id and scorers.scorer = judgement.scorer
),

read_lengths as (
    select
        requests.run_id,
        requests.prompt_id,
        requests.occurrence,
        requests.repeat_index,
        arg_min(length(completions.text), coalesce(completions.finished_at_s, 0)) as characters
    from raw.requests
    join raw.completions using (run_id, request_id)
    where requests.run_id in (
            select unnest([judged_run_id, other_run_id]) from read_judgements where other_run_id is not null
        )
        and requests.option_index is null
        and coalesce(requests.turn_index = requests.turns - 1, true)
        and completions.error_kind is null
    group by requests.run_id, requests.prompt_id, requests.occurrence, requests.repeat_index
),

measure_lengths as (
    select
        read_judgements.*,
        case when other_run_id is not null then sign(judged.characters - other.characters) end as longer
    from read_judgements
    left join read_lengths as judged
        on judged.run_id = judged_run_id
        and judged.prompt_id = judged_prompt_id
        and judged.occurrence = judged_occurrence
        and judged.repeat_index = judged_repeat_index
    left join read_lengths as other
        on other.run_id = other_run_id
        and other.prompt_id = other_prompt_id
        and other.occurrence = other_occurrence
        and other.repeat_index = other_repeat_index
),

find_panels as (
    select scorer, judged_run_id, other_run_id
    from read_judgements
    group by scorer, judged_run_id, other_run_id
    having count(distinct judge_run_id) > 1
),

unite_panels as (
    select
        *,
        false as is_panel,
        concat_ws(' ', prompt_id, occurrence, repeat_index) as request
    from measure_lengths
    union all by name
    select measure_lengths.* replace (0 as repeat_index), true as is_panel
    from measure_lengths
    join find_panels
        on find_panels.scorer = measure_lengths.scorer
        and find_panels.judged_run_id = measure_lengths.judged_run_id
        and find_panels.other_run_id is not distinct from measure_lengths.other_run_id
),

name_columns as (
    select
        dense_rank() over (
            order by
                is_panel,
                case when not is_panel then judge_run_id end,
                scorer,
                case when is_panel then judged_run_id end,
                case when is_panel then other_run_id end
        ) as judge_index,
        is_panel,
        judge_run_id,
        scorer,
        judged_run_id,
        other_run_id,
        first,
        coalesce(prompt_cluster.cluster, judged_prompt_id) as cluster,
        answer,
        concat_ws(' ', answer, first) as shown,
        coalesce(request, shown) as ballot,
        repeat_index,
        status,
        value,
        case
            when has_scale or other_run_id is not null then cast(round(value, 6) as varchar)
            else verdict
        end as category,
        label,
        label_value,
        case
            when label_value is null then null
            when has_scale or other_run_id is not null then cast(round(label_value, 6) as varchar)
            else label
        end as label_category,
        has_scale,
        longer
    from unite_panels
    left join internal.prompt_cluster
        on prompt_cluster.run_id = judged_run_id
        and prompt_cluster.prompt_id = judged_prompt_id
        and prompt_cluster.occurrence = judged_occurrence
)

select * from name_columns;

comment on macro table internal.list_judgements is 'list_judgements(run_ids), a list of run ids of judges: one row per judgement of each, and again per judgement of each panel: the judges of one run.';

-- Grain: one row per judged answer that a reader is shown, at most `most_prompts` of them.
--
-- `run_ids` is a list of run ids of judges. With is_disagreement they are answers whose verdict differs from the label,
-- the widest difference first; otherwise answers with a verdict below the best, the lowest mean first, without pairs.
-- Of several verdicts on an answer, the one farthest from the label, or the lowest, is shown. Ties are broken by
-- prompt_id, a digest, so they come from anywhere in the file.
--
-- judge_run_id: the judge's run.
-- scorer: as in judgement.
-- judged_run_id: run of the judged answer; for pairs, of answer a.
-- prompt_id: the judged prompt.
-- repeat_index: as in the judged run.
-- verdict: the verdict, as the judge wrote it.
-- value: the verdict as a number; see judgement.
-- mean_value: mean of all verdicts on the answer.
-- judgements: number of these verdicts.
-- label: a person's verdict. NULL if there is none.
-- label_value: the label as a number; see judgement.
-- first: for pairs, the answer that was shown first, a or b.
-- reason: the judge's reason.
-- prompt: the last user message of the judged prompt. NULL if its run is not in this database, like the next two.
-- answer: the judged answer; for pairs, answer a.
-- other_answer: for pairs, answer b.
create or replace macro internal.show_judgements(run_ids, is_disagreement, most_prompts) as table
with

measure_gaps as (
    select
        *,
        case when is_disagreement then -abs(value - label_value) else value end as gap,
        avg(value) over answer as mean_value,
        count(*) over answer as judgements
    from internal.find_judgements(run_ids)
    where status = 'judged' and (is_disagreement or other_run_id is null)
    window answer as (
        partition by scorer, judged_run_id, judged_prompt_id, judged_occurrence, judged_repeat_index, other_run_id,
            other_repeat_index
    )
),

choose_judgements as materialized (
    select *
    from measure_gaps
    where case when is_disagreement then gap < -1e-6 else mean_value < 1 end
    qualify row_number() over (
        partition by judged_run_id, judged_prompt_id, judged_occurrence, judged_repeat_index, other_run_id,
            other_repeat_index
        order by gap, judge_run_id, scorer, prompt_id, repeat_index
    ) = 1
    order by
        case when is_disagreement then gap else mean_value end,
        judged_prompt_id,
        judged_run_id,
        judged_occurrence,
        judged_repeat_index,
        other_run_id
    limit most_prompts
),

list_answers as (
    select judged_run_id as run_id, judged_prompt_id as prompt_id, judged_occurrence as occurrence,
        judged_repeat_index as repeat_index
    from choose_judgements
    union
    select other_run_id, other_prompt_id, other_occurrence, other_repeat_index
    from choose_judgements
    where other_run_id is not null
),

read_answers as (
    select
        requests.run_id,
        requests.prompt_id,
        requests.occurrence,
        requests.repeat_index,
        arg_min(completions.text, coalesce(completions.finished_at_s, 0)) as answer
    from raw.requests
    join list_answers using (run_id, prompt_id, occurrence, repeat_index)
    join raw.completions using (run_id, request_id)
    where requests.run_id in (select run_id from list_answers)
        and completions.run_id in (select run_id from list_answers)
        and requests.option_index is null
        and coalesce(requests.turn_index = requests.turns - 1, true)
        and completions.error_kind is null
    group by requests.run_id, requests.prompt_id, requests.occurrence, requests.repeat_index
),

read_prompts as (
    select distinct on (run_id, prompt_id, occurrence)
        run_id,
        prompt_id,
        occurrence,
        list_filter(
            from_json(messages_json, '["json"]'), lambda message: (message ->> 'role') = 'user'
        )[-1] ->> 'content' as prompt
    from raw.prompts
    where run_id in (select run_id from list_answers) and prompt_id in (select prompt_id from list_answers)
),

join_texts as (
    select
        chosen.judge_run_id,
        chosen.scorer,
        chosen.judged_run_id,
        chosen.judged_prompt_id as prompt_id,
        chosen.judged_repeat_index as repeat_index,
        chosen.verdict,
        chosen.value,
        chosen.mean_value,
        chosen.judgements,
        chosen.label,
        chosen.label_value,
        chosen.first,
        chosen.reason,
        read_prompts.prompt,
        ours.answer,
        other.answer as other_answer
    from choose_judgements as chosen
    left join read_prompts
        on read_prompts.run_id = chosen.judged_run_id
        and read_prompts.prompt_id = chosen.judged_prompt_id
        and read_prompts.occurrence = chosen.judged_occurrence
    left join read_answers as ours
        on ours.run_id = chosen.judged_run_id
        and ours.prompt_id = chosen.judged_prompt_id
        and ours.occurrence = chosen.judged_occurrence
        and ours.repeat_index = chosen.judged_repeat_index
    left join read_answers as other
        on other.run_id = chosen.other_run_id
        and other.prompt_id = chosen.other_prompt_id
        and other.occurrence = chosen.other_occurrence
        and other.repeat_index = chosen.other_repeat_index
    order by
        case when is_disagreement then chosen.gap else chosen.mean_value end,
        chosen.judged_prompt_id,
        chosen.judged_run_id,
        chosen.judged_occurrence,
        chosen.judged_repeat_index,
        chosen.other_run_id
)

select * from join_texts;

comment on macro table internal.show_judgements is 'show_judgements(run_ids, is_disagreement, most_prompts), a list of run ids of judges: judged answers with the judge''s reason, those that its verdict and a label disagree on, or those with the lowest verdicts.';

-- Grain: one row per prompt whose score differs between two runs, at most `most_prompts`, by the candidate's first
-- scorer. `pair_by` is as pair_prompts takes it.
--
-- With direction 1 they are prompts that became worse, those that lost most first; with -1 those that became better.
--
-- scorer: the candidate's first scorer.
-- prompt_id: the prompt.
-- candidate_value: mean score of the candidate's samples of it.
-- baseline_value: mean score of the baseline's samples of it.
-- difference: candidate_value − baseline_value.
-- target: the expected answer.
-- messages_json: the prompt as chat messages.
-- candidate_answer: the candidate's first answer to it, or the kind of its error.
-- baseline_answer: the baseline's first answer to it, or the kind of its error.
-- flip_share: share of pairs of equal runs whose scores of the prompt differ; see noise_prompt. The larger one if the
--     configurations of both runs were measured. NULL if neither was.
create or replace macro internal.show_flips(candidate, baseline, direction, most_prompts, pair_by := 'auto') as table
with

choose_prompts as (
    select *
    from internal.pair_prompts(candidate, baseline, pair_by := pair_by)
    where
        direction * difference < 0
        and scorer = (
            select scorers.scorer
            from raw.scorers
            where scorers.run_id = candidate
            order by scorers.ordinal
            limit 1
        )
    order by direction * difference, prompt_id, occurrence
    limit most_prompts
),

read_prompts as (
    select prompt_id, occurrence, any_value(target) as target, any_value(messages_json) as messages_json
    from raw.prompts
    where run_id = candidate
    group by prompt_id, occurrence
),

read_answers as (
    select run_id, prompt_id, occurrence, arg_min(coalesce(answer, error_kind), repeat_index) as answer
    -- Not `in`: the filter would not reach the tables below.
    from (
        select * from internal.stg_samples where run_id = candidate
        union all
        select * from internal.stg_samples where run_id = baseline
    )
    group by run_id, prompt_id, occurrence
),

share_flips as (
    select prompt_id, occurrence, score_flip_share
    from internal.noise_prompt((
        select list(noise_run.run_id)
        from internal.noise_run
        join internal.run_conditions using (config_id, environment)
        where run_conditions.run_id = candidate
    ))
),

share_baseline_flips as (
    select prompt_id, occurrence, score_flip_share
    from internal.noise_prompt((
        select list(noise_run.run_id)
        from internal.noise_run
        join internal.run_conditions using (config_id, environment)
        where run_conditions.run_id = baseline
    ))
),

join_answers as (
    select
        choose_prompts.scorer,
        choose_prompts.prompt_id,
        choose_prompts.candidate_value,
        choose_prompts.baseline_value,
        choose_prompts.difference,
        read_prompts.target,
        read_prompts.messages_json,
        ours.answer as candidate_answer,
        theirs.answer as baseline_answer,
        greatest(own_flips.score_flip_share, baseline_flips.score_flip_share) as flip_share
    from choose_prompts
    left join read_prompts
        on read_prompts.prompt_id = choose_prompts.prompt_id
        and read_prompts.occurrence = choose_prompts.occurrence
    left join read_answers as ours
        on ours.run_id = candidate
        and ours.prompt_id = choose_prompts.prompt_id
        and ours.occurrence = choose_prompts.occurrence
    left join read_answers as theirs
        on theirs.run_id = baseline
        and theirs.prompt_id = choose_prompts.baseline_prompt_id
        and theirs.occurrence = choose_prompts.baseline_occurrence
    left join share_flips as own_flips
        on own_flips.prompt_id = choose_prompts.prompt_id
        and own_flips.occurrence = choose_prompts.occurrence
    left join share_baseline_flips as baseline_flips
        on baseline_flips.prompt_id = choose_prompts.baseline_prompt_id
        and baseline_flips.occurrence = choose_prompts.baseline_occurrence
    order by direction * choose_prompts.difference, choose_prompts.prompt_id, choose_prompts.occurrence
)

select * from join_answers;

comment on macro table internal.show_flips is 'show_flips(candidate, baseline, direction, most_prompts, pair_by := ''auto''): prompts that became worse (direction 1) or better (-1), with an answer of each run, by the candidate''s first scorer.';

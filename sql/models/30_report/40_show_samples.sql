-- Grain: one row per prompt of a run that a reader is shown, at most `most_prompts` of them, by the run's first scorer.
--
-- With direction 1 they are prompts that were not right, those that scored least first; with -1 prompts that scored,
-- the best first. Ties are broken by digest, so they come from anywhere in the file. If a prompt has several samples,
-- the most extreme in that direction is shown.
--
-- The run is named wherever rows are read, as no filter goes through a join.
--
-- scorer: the run's first scorer.
-- prompt_id: the prompt.
-- occurrence: which of the run's rows with that prompt_id.
-- value: the score of the sample that is shown.
-- mean_value: the mean of all samples of the prompt.
-- samples: how many there are.
-- extracted: what the scorer took from the answer.
-- explanation: explanation by the scorer.
-- source_row: row in the prompt file, from 0.
-- status: as in stg_samples.
-- answer: the answer.
-- target: the expected answer.
-- finish_reason: why the answer ended.
-- error_message: message of the error.
-- options: the options, of a prompt that has some.
-- option_logprobs: their log-probabilities.
-- reasoning: text that the model wrote before its closing tag.
-- rendered: the prompt as the model read it; of a conversation of several turns its messages, one below the other, with
--     the model's own answers.
-- media_json: references to its images, audio and video.
create or replace macro internal.show_samples(run, direction, most_prompts) as table
with

choose_scorer as (
    select run_id, scorer
    from raw.scorers
    where run_id = run
    order by ordinal
    limit 1
),

choose_prompts as (
    select prompt_score.*
    from internal.prompt_score
    join choose_scorer using (run_id, scorer)
    where prompt_score.run_id = run and (direction > 0 and mean_value < 1 or direction <= 0 and mean_value > 0)
    order by direction * mean_value, prompt_id, occurrence
    limit most_prompts
),

choose_samples as (
    select scores.*, choose_prompts.mean_value, choose_prompts.samples
    from raw.scores
    join choose_prompts using (run_id, scorer, prompt_id, occurrence)
    where scores.run_id = run
    qualify row_number() over (
        partition by prompt_id, occurrence order by direction * scores.value, scores.repeat_index
    ) = 1
),

read_reasoning as (
    select request_id, any_value(reasoning) as reasoning
    from raw.completions
    where run_id = run and reasoning is not null
    group by request_id
),

write_turns as (
    select
        requests.prompt_id,
        requests.occurrence,
        requests.repeat_index,
        requests.turn_index,
        requests.turns,
        array_to_string(
            list_transform(
                from_json(requests.turn_messages_json, '["json"]'),
                lambda message: (message ->> 'role') || ': ' || (message ->> 'content')
            ),
            chr(10)
        ) as said,
        chr(10) || 'assistant: ' || one_answer.text as answered
    from raw.requests
    join choose_samples using (run_id, prompt_id, occurrence, repeat_index)
    left join (select request_id, text from internal.one_answer where run_id = run) as one_answer using (request_id)
    where requests.run_id = run and requests.turns > 1
),

-- The answer to the last turn is the sample's own.
join_turns as (
    select
        prompt_id,
        occurrence,
        repeat_index,
        string_agg(
            said || case when turn_index < turns - 1 then coalesce(answered, '') else '' end,
            chr(10)
            order by turn_index
        ) as conversation
    from write_turns
    group by prompt_id, occurrence, repeat_index
),

join_samples as (
    select
        choose_samples.scorer,
        choose_samples.prompt_id,
        choose_samples.occurrence,
        choose_samples.value,
        choose_samples.mean_value,
        choose_samples.samples,
        choose_samples.extracted,
        choose_samples.explanation,
        stg_samples.source_row,
        stg_samples.status,
        stg_samples.answer,
        stg_samples.target,
        stg_samples.finish_reason,
        stg_samples.error_message,
        stg_samples.options,
        stg_samples.option_logprobs,
        read_reasoning.reasoning,
        coalesce(requests.rendered, join_turns.conversation) as rendered,
        requests.media_json
    from choose_samples
    join internal.stg_samples using (run_id, prompt_id, occurrence, repeat_index)
    left join raw.requests on requests.run_id = run and requests.request_id = stg_samples.request_id
    left join join_turns
        on join_turns.prompt_id = choose_samples.prompt_id
        and join_turns.occurrence = choose_samples.occurrence
        and join_turns.repeat_index = choose_samples.repeat_index
    left join read_reasoning on read_reasoning.request_id = stg_samples.request_id
    where stg_samples.run_id = run
    order by direction * choose_samples.mean_value, choose_samples.prompt_id, choose_samples.occurrence
)

select * from join_samples;

comment on macro table internal.show_samples is 'show_samples(run, direction, most_prompts): a sample of each of some prompts, the worst first (direction 1) or the best first (-1), by the run''s first scorer.';

-- Grain: one row per prompt that earlier runs of a model have answered.
--
-- How long an answer may be expected to be: the median over the newest ten completed runs of the model on the prompt
-- set, whatever their settings. A prompt that was asked in other words is another prompt. Likelihoods of options are
-- not answers. Runs of the benchmark that asks do not count, so that all of its repeats know the same.
--
-- prompt_id: the prompt.
-- output_tokens: the median of its answers, in tokens, rounded up; thinking included.
create or replace macro internal.recall_lengths(asked_model_id, asked_prompt_set, asking_benchmark_id) as table
with

choose_runs as (
    select run_id
    from raw.runs
    where state = 'completed'
        and model_id = asked_model_id
        and prompt_set = asked_prompt_set
        and (asking_benchmark_id is null or benchmark_id is distinct from asking_benchmark_id)
    order by started_at desc, run_id desc
    limit 10
),

find_answers as (
    select requests.prompt_id, completions.output_tokens
    from raw.requests
    join raw.completions using (run_id, request_id)
    where run_id in (select run_id from choose_runs)
        and requests.option_index is null
        and completions.error_kind is null
        and completions.output_tokens is not null
),

take_medians as (
    select prompt_id, cast(ceil(median(output_tokens)) as integer) as output_tokens
    from find_answers
    group by prompt_id
)

select * from take_medians;

comment on macro table internal.recall_lengths is 'recall_lengths(asked_model_id, asked_prompt_set, asking_benchmark_id), the last of them NULL for a standalone run: one row per prompt of the set that the newest ten completed runs of the model have answered, with the median length of its answers. engine.order goes by it.';

-- Grain: one row per scored prompt of a run: the mean outcome of its answers, and the moment at which they were made.
--
-- `reference` is another run, or NULL. If its config_id is the same, its answers count as repeats of the prompts.
-- `asked_scorer` is one of the run's scorers; NULL is its first. Errors are left out. Of more than 10,000 answers, the
-- answers to some prompts are taken, chosen by a digest of the prompt.
--
-- prompt_id: the prompt.
-- answers: answers of the run to it.
-- score: mean score, 0 to 1.
-- reference_score: mean score in the reference.
-- flip: share of pairs of its answers, in both runs, whose texts differ. NULL for a single answer.
-- position: place in the order of sending, from 1, as a mean; so are the next four.
-- in_flight: requests in flight on its engine, itself included, shortly after its arrival: after half of the time that
--     95% of the run's requests take at least, or at its end. Its own length has no influence.
-- preemptions: preemptions of a request.
-- cached_share: share of the prompt served from the prefix cache.
-- output_tokens: length of an answer.
-- workers: worker of each answer.
-- engines: worker/engine_generation of each answer.
create or replace macro internal.list_moments(run, reference := null, asked_scorer := null) as table
with

choose_scorer as (
    select scorer
    from raw.scorers
    where run_id = run and (asked_scorer is null or scorer = asked_scorer)
    order by ordinal
    limit 1
),

choose_reference as (
    select run_id
    from raw.runs
    where run_id = reference
        and run_id <> run
        and config_id = (select runs.config_id from raw.runs where runs.run_id = run)
),

read_requests as (
    select
        *,
        finished_at_s - arrived_at_s as duration_s,
        quantile_cont(finished_at_s - arrived_at_s, 0.05) over () / 2 as delay_s
    from internal.one_answer
    where run_id = run and arrived_at_s < finished_at_s
),

mark_changes as (
    select
        request_id,
        worker,
        engine_generation,
        unnest([arrived_at_s, arrived_at_s + least(duration_s, delay_s), finished_at_s]) as at_s,
        unnest([1, 0, -1]) as change
    from read_requests
),

count_in_flight as (
    select
        request_id,
        change,
        cast(sum(change) over (
            partition by worker, engine_generation
            order by at_s, change <> 0, change
        ) as bigint) as in_flight
    from mark_changes
),

read_scores as (
    select *
    from raw.scores
    where run_id = run and error_kind is null and scorer = (select choose_scorer.scorer from choose_scorer)
    qualify md5_number_lower(prompt_id) % cast(ceil(count(*) over () / 10000) as ubigint) = 0
),

read_reference as (
    select prompt_id, avg(value) as reference_score
    from raw.scores
    where run_id = (select choose_reference.run_id from choose_reference)
        and scorer = (select choose_scorer.scorer from choose_scorer)
    group by prompt_id
),

-- One request per sample: an answer, the first of its options, or the last of its turns.
read_answers as materialized (
    select one_answer.*, one_request.* exclude (run_id, request_id)
    from internal.one_request
    join internal.one_answer using (run_id, request_id)
    where one_request.run_id in (run, reference)
        and one_answer.run_id in (run, reference)
        and coalesce(option_index, 0) = 0
        and coalesce(turn_index = turns - 1, true)
        and (run_id = run or run_id = (select choose_reference.run_id from choose_reference))
),

count_texts as (
    select prompt_id, text, count(*) as equal_texts, sum(count(*)) over (partition by prompt_id) as texts
    from read_answers
    where text is not null and option_index is null
    group by prompt_id, text
),

place_answers as (
    select
        prompt_id,
        read_scores.value,
        1 - (count_texts.equal_texts - 1) / nullif(count_texts.texts - 1, 0) as flip,
        row_number() over (order by coalesce(answers.sent_at_s, answers.arrived_at_s), answers.request_id) as position,
        count_in_flight.in_flight,
        answers.preemptions,
        answers.cached_tokens / nullif(answers.prompt_tokens, 0) as cached_share,
        answers.output_tokens,
        answers.worker,
        answers.worker || '/' || answers.engine_generation as engine
    from read_scores
    join (select * exclude (run_id) from read_answers where run_id = run) as answers
        using (prompt_id, occurrence, repeat_index)
    left join count_in_flight
        on count_in_flight.request_id = answers.request_id and count_in_flight.change = 0
    left join count_texts using (prompt_id, text)
),

average_answers as (
    select
        prompt_id,
        count(*) as answers,
        cast(avg(value) as double) as score,
        any_value(reference_score) as reference_score,
        avg(flip) as flip,
        avg(position) as position,
        avg(in_flight) as in_flight,
        cast(avg(preemptions) as double) as preemptions,
        avg(cached_share) as cached_share,
        avg(output_tokens) as output_tokens,
        list(worker order by position) as workers,
        list(engine order by position) as engines
    from place_answers
    left join read_reference using (prompt_id)
    group by prompt_id
)

select * from average_answers;

comment on macro table internal.list_moments is 'list_moments(run, reference := null, asked_scorer := null): one row per scored prompt: mean score, share of pairs of answers whose texts differ, and the moment: requests in flight, preemptions, cached share of the prompt, position, workers and engines. Input of score_factors.';

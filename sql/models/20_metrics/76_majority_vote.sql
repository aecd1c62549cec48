-- Grain: one row per run × scorer.
create or replace view majority_vote as
with

-- What these extract is the whole answer, and two samples hardly ever agree in that.
vote_of_nothing as (
    select run_id, scorer from scorers where kind in ('contains', 'token_f1', 'json')
),

count_votes as (
    select
        run_id,
        scorer,
        prompt_id,
        occurrence,
        extracted,
        count(*) as votes,
        min(repeat_index) as first_repeat,
        arg_min(value, repeat_index) as value
    from scores
    anti join vote_of_nothing using (run_id, scorer)
    group by run_id, scorer, prompt_id, occurrence, extracted
),

-- Samples without an answer abstain: they win only where no other voted.
elect_answers as (
    select
        run_id,
        scorer,
        prompt_id,
        occurrence,
        arg_min(value, {'abstains': extracted is null, 'fewest': -votes, 'first': first_repeat}) as value,
        sum(votes) as samples
    from count_votes
    group by run_id, scorer, prompt_id, occurrence
),

average_runs as (
    select
        run_id,
        scorer,
        max(samples) as most_samples,
        count(*) as prompts,
        avg(value) as mean,
        stddev_samp(value) / sqrt(count(*)) as standard_error,
        count(*) filter (value not in (0, 1)) = 0 as is_binary
    from elect_answers
    group by run_id, scorer
),

find_intervals as (
    select
        *,
        mean_interval(mean, is_binary, prompts, standard_error, prompts) as bounds
    from average_runs
    where most_samples > 1
),

name_columns as (
    select
        run_id,
        scorer,
        prompts,
        mean,
        standard_error,
        bounds.kind as interval_kind,
        bounds.low as mean_low,
        bounds.high as mean_high
    from find_intervals
)

select * from name_columns;

comment on view majority_vote is 'One row per run × scorer: the mean score of the answers that most samples of a prompt row gave (self-consistency, Wang et al. 2022). Runs whose prompts were asked once have no row, nor have scorers whose extracted answer is all of the text: contains, token_f1, json.';
comment on column majority_vote.run_id is 'The run.';
comment on column majority_vote.scorer is 'The scorer, as in scorers. Votes are equal where its extracted answers are.';
comment on column majority_vote.prompts is 'Prompt rows: n.';
comment on column majority_vote.mean is 'Mean over them of the elected answer''s score: the most frequent one, of equally frequent ones the earliest. Samples without an extracted answer do not vote; where none has one, the score is 0.';
comment on column majority_vote.standard_error is 'Standard deviation over prompt rows / sqrt(n). NULL for one.';
comment on column majority_vote.interval_kind is 'wilson where all scores are 0 or 1, otherwise t. NULL where there is no interval.';
comment on column majority_vote.mean_low is 'Lower end of the 95 % interval for the mean; see the macro mean_interval.';
comment on column majority_vote.mean_high is 'Upper end of the interval.';

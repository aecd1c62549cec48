-- Grain: one row per run × scorer.
create or replace view internal.majority_vote as
with

-- These scorers extract the complete answer, in which two samples rarely agree.
vote_of_nothing as (
    select run_id, scorer
    from raw.scorers
    where coalesce(arguments_json ->> '$.metric_id', kind) in ('contains', 'token_f1', 'json')
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
    from raw.scores
    anti join vote_of_nothing using (run_id, scorer)
    group by run_id, scorer, prompt_id, occurrence, extracted
),

-- Samples without an answer abstain: they win only if no other voted.
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

add_clusters as (
    select
        run_id,
        scorer,
        coalesce(cluster, prompt_id) as cluster,
        max(samples) as most_samples,
        count(*) as prompt_rows,
        sum(value) as total,
        sum(value ** 2) as squares,
        count(*) filter (value not in (0, 1)) as partial_rows
    from elect_answers
    left join internal.prompt_cluster using (run_id, prompt_id, occurrence)
    group by run_id, scorer, coalesce(cluster, prompt_id)
),

average_runs as (
    select
        *,
        sum(prompt_rows) over (partition by run_id, scorer) as all_prompts,
        sum(total) over (partition by run_id, scorer) / all_prompts as mean
    from add_clusters
),

sum_deviations as (
    select
        run_id,
        scorer,
        max(most_samples) as most_samples,
        cast(sum(prompt_rows) as bigint) as prompts,
        count(*) as clusters,
        sum(partial_rows) = 0 as is_binary,
        any_value(mean) as mean,
        sum(prompt_rows) ** 2 / sum(prompt_rows ** 2) as effective_clusters,
        sum(((total - prompt_rows * mean) / nullif(all_prompts - prompt_rows, 0)) ** 2) as moves,
        greatest(0, sum(squares - 2 * mean * total + prompt_rows * mean ** 2)) as plain_squares
    from average_runs
    group by run_id, scorer
),

judge_runs as (
    select
        *,
        sqrt(moves * (clusters - 1) / clusters) as standard_error,
        internal.effective_samples(prompts, clusters, effective_clusters, plain_squares, standard_error) as worth
    from sum_deviations
    where most_samples > 1
),

find_intervals as (
    select
        *,
        internal.mean_interval(mean, is_binary, prompts, worth, effective_clusters, plain_squares) as bounds
    from judge_runs
),

name_columns as (
    select
        run_id,
        scorer,
        prompts,
        mean,
        standard_error,
        bounds.low as mean_low,
        bounds.high as mean_high
    from find_intervals
)

select * from name_columns;

comment on view internal.majority_vote is 'One row per run × scorer: the mean score of the answers that most samples of a prompt row gave (self-consistency, Wang et al. 2022). Runs whose prompts were asked once have no row, nor have scorers whose extracted answer is all of the text: contains, token_f1, json.';
comment on column internal.majority_vote.run_id is 'The run.';
comment on column internal.majority_vote.scorer is 'The scorer, as in scorers. Votes are equal if its extracted answers are.';
comment on column internal.majority_vote.prompts is 'Prompt rows: n.';
comment on column internal.majority_vote.mean is 'Mean over them of the elected answer''s score: the most frequent one, of equally frequent ones the earliest. Samples without an extracted answer do not vote; if none has one, the score is 0.';
comment on column internal.majority_vote.standard_error is 'Standard error of the mean, clustered as in accuracy. NULL for one cluster.';
comment on column internal.majority_vote.mean_low is 'Lower end of the 95% interval for the mean; see the macro mean_interval.';
comment on column internal.majority_vote.mean_high is 'Upper end of the interval.';

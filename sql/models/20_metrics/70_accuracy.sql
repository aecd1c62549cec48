-- Grain: one row per run × scorer.
create or replace view internal.accuracy as
with

-- A prompt row counts once, whatever the number of its repeats, as in compare_runs.
average_repeats as (
    select
        run_id,
        scorer,
        prompt_id,
        occurrence,
        count(*) as samples,
        sum(value) as score_sum,
        avg(value) as value,
        avg(value) filter (error_kind is null) as answered_value,
        count(*) filter (value = 1) as right_samples,
        count(*) - count(error_kind) as answered_samples
    from raw.scores
    group by run_id, scorer, prompt_id, occurrence
),

add_clusters as (
    select
        run_id,
        scorer,
        coalesce(cluster, prompt_id) as cluster,
        list(distinct prompt_id) as prompts,
        count(*) as prompt_rows,
        sum(value) as total,
        sum(value ** 2) as squares,
        count(*) filter (value not in (0, 1)) as partial_rows,
        count(answered_value) as answered_rows,
        coalesce(sum(answered_value), 0) as answered_total,
        sum(samples) as samples,
        sum(score_sum) as score_sum,
        sum(right_samples) as right_samples,
        sum(answered_samples) as answered_samples
    from average_repeats
    left join internal.prompt_cluster using (run_id, prompt_id, occurrence)
    group by run_id, scorer, coalesce(cluster, prompt_id)
),

-- Windows rather than a join of the averages: a filter on run_id reaches the scores through them.
average_runs as (
    select
        *,
        sum(prompt_rows) over (partition by run_id, scorer) as all_rows,
        sum(total) over (partition by run_id, scorer) / all_rows as mean
    from add_clusters
),

-- moves: (by how much the mean moves without a cluster)², summed over clusters.
-- plain_squares: each prompt row's deviation², summed over them.
sum_deviations as (
    select
        run_id,
        scorer,
        sum(samples) as samples,
        sum(score_sum) as score_sum,
        sum(right_samples) as right_samples,
        sum(answered_samples) as answered_samples,
        sum(answered_total) / nullif(sum(answered_rows), 0) as mean_without_errors,
        sum(partial_rows) = 0 as is_binary,
        sum(prompt_rows) as prompt_rows,
        len(list_distinct(flatten(list(prompts)))) as prompts,
        count(*) as clusters,
        any_value(mean) as mean,
        sum(prompt_rows) ** 2 / sum(prompt_rows ** 2) as effective_clusters,
        sum(((total - prompt_rows * mean) / nullif(all_rows - prompt_rows, 0)) ** 2) as moves,
        greatest(0, sum(squares - 2 * mean * total + prompt_rows * mean ** 2)) as plain_squares
    from average_runs
    group by run_id, scorer
),

judge_runs as (
    select
        *,
        sqrt(moves * (clusters - 1) / clusters) as standard_error,
        internal.effective_samples(prompt_rows, clusters, effective_clusters, plain_squares, standard_error)
            as effective_samples
    from sum_deviations
),

find_intervals as (
    select
        *,
        internal.mean_interval(
            mean, is_binary, prompt_rows, effective_samples, effective_clusters, plain_squares
        ) as bounds
    from judge_runs
),

fill_scorers as (
    select
        scorers.run_id,
        scorers.scorer,
        scorers.kind,
        scorers.ordinal,
        cast(coalesce(find_intervals.samples, 0) as bigint) as samples,
        cast(coalesce(find_intervals.right_samples, 0) as bigint) as right_samples,
        cast(coalesce(find_intervals.answered_samples, 0) as bigint) as answered_samples,
        cast(coalesce(find_intervals.prompts, 0) as bigint) as prompts,
        coalesce(find_intervals.clusters, 0) as clusters,
        find_intervals.score_sum,
        find_intervals.mean,
        find_intervals.standard_error,
        cast(find_intervals.effective_samples as double) as effective_samples,
        find_intervals.bounds.low as mean_low,
        find_intervals.bounds.high as mean_high,
        find_intervals.mean_without_errors
    from raw.scorers
    left join find_intervals
        on find_intervals.run_id = scorers.run_id
        and find_intervals.scorer = scorers.scorer
)

select * from fill_scorers;

comment on view internal.accuracy is 'One row per run × scorer: the mean of its scores, with its uncertainty. Errors are scores of 0; what was never answered has none.';
comment on column internal.accuracy.run_id is 'The run.';
comment on column internal.accuracy.scorer is 'The scorer, as in scorers.';
comment on column internal.accuracy.kind is 'Which scorer it is.';
comment on column internal.accuracy.ordinal is 'Its place among the run''s scorers; the lowest is the one that run_summary shows.';
comment on column internal.accuracy.samples is 'Scores.';
comment on column internal.accuracy.right_samples is 'Those of them that are 1.';
comment on column internal.accuracy.answered_samples is 'Scores of answers, without errors.';
comment on column internal.accuracy.prompts is 'Different prompts among them.';
comment on column internal.accuracy.clusters is 'Clusters among them: G. Repeats and duplicates of a prompt are one cluster, and so are prompts with one value of prompts.columns.cluster.';
comment on column internal.accuracy.score_sum is 'Sum of the scores: right answers, if they are 0 or 1.';
comment on column internal.accuracy.mean is 'Mean score over prompt rows, 0 to 1: each counts once by the mean of its repeats, as in compare_runs and pass_at_k. NULL without scores.';
comment on column internal.accuracy.standard_error is 'Standard error of the mean, the jackknife''s over clusters (CR3): sqrt((G − 1) / G × Σ over clusters of (mean without the cluster − mean)²). With one prompt row per cluster it is s / sqrt(rows). NULL for fewer than two clusters.';
comment on column internal.accuracy.effective_samples is 'Independent prompt rows that they are worth; see the macro effective_samples. NULL without scores.';
comment on column internal.accuracy.mean_low is 'Lower end of the 95% interval for the mean; see the macro mean_interval. Its degrees of freedom are those of effective clusters, (sum of sizes)² / sum of sizes² (Kish), less 1. NULL if there is no interval.';
comment on column internal.accuracy.mean_high is 'Upper end.';
comment on column internal.accuracy.mean_without_errors is 'Mean over prompt rows of the mean score of their answered samples, 0 to 1: without errors, which count as 0 in mean. Far from mean, errors decide the accuracy. NULL if none was answered.';

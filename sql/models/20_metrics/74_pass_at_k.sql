-- Grain: one row per run × scorer × k.
create or replace view internal.pass_at_k as
with

find_most as (
    select *, max(samples) over (partition by run_id, scorer) as most_samples
    from prompt_score
),

choose_k as (
    select
        *,
        unnest(list_distinct(list_filter(
            [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000, most_samples],
            lambda k: k <= most_samples
        ))) as k
    from find_most
    where most_samples > 1
),

-- C(n − c, k) / C(n, k) from logarithms of factorials: the numbers themselves overflow for n in the hundreds.
estimate_rows as (
    select
        *,
        case
            when samples < k then null
            when samples - right_samples < k then 1
            else 1 - exp(
                lgamma(samples - right_samples + 1) - lgamma(samples - right_samples - k + 1)
                - (lgamma(samples + 1) - lgamma(samples - k + 1))
            )
        end as pass_chance
    from choose_k
),

add_clusters as (
    select
        run_id,
        scorer,
        k,
        coalesce(cluster, prompt_id) as cluster,
        count(*) as all_rows,
        count(pass_chance) as prompt_rows,
        sum(pass_chance) as total,
        sum(pass_chance ** 2) as squares,
        count(*) filter (pass_chance not in (0, 1)) as partial_rows
    from estimate_rows
    left join internal.prompt_cluster using (run_id, prompt_id, occurrence)
    group by run_id, scorer, k, coalesce(cluster, prompt_id)
),

-- NULL if a row has fewer than k samples: without it the mean would be of other prompts than those of a smaller k.
average_runs as (
    select
        *,
        sum(prompt_rows) over runs_of_k as all_prompts,
        case
            when sum(prompt_rows) over runs_of_k = sum(all_rows) over runs_of_k
            then sum(total) over runs_of_k / sum(all_rows) over runs_of_k
        end as mean
    from add_clusters
    window runs_of_k as (partition by run_id, scorer, k)
),

sum_deviations as (
    select
        run_id,
        scorer,
        k,
        sum(prompt_rows) as prompts,
        count(*) as clusters,
        sum(partial_rows) = 0 as is_binary,
        any_value(mean) as mean,
        sum(prompt_rows) ** 2 / sum(prompt_rows ** 2) as effective_clusters,
        sum(((total - prompt_rows * mean) / nullif(all_prompts - prompt_rows, 0)) ** 2) as moves,
        greatest(0, sum(squares - 2 * mean * total + prompt_rows * mean ** 2)) as plain_squares
    from average_runs
    group by run_id, scorer, k
),

judge_runs as (
    select
        *,
        sqrt(moves * (clusters - 1) / clusters) as standard_error,
        internal.effective_samples(prompts, clusters, effective_clusters, plain_squares, standard_error) as worth
    from sum_deviations
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
        k,
        cast(prompts as bigint) as prompts,
        mean,
        standard_error,
        bounds.low as mean_low,
        bounds.high as mean_high
    from find_intervals
)

select * from name_columns;

comment on view internal.pass_at_k is 'One row per run × scorer × k: the chance that of k samples of a prompt at least one is right, by the unbiased estimator of Chen et al. 2021, averaged over prompt rows. Runs whose prompts were asked once have no row.';
comment on column internal.pass_at_k.run_id is 'The run.';
comment on column internal.pass_at_k.scorer is 'The scorer, as in scorers. A score of 1 is right, any other is not.';
comment on column internal.pass_at_k.k is 'How many samples there are to succeed: 1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100 and so on, and as many as there are.';
comment on column internal.pass_at_k.prompts is 'Prompt rows with at least k samples.';
comment on column internal.pass_at_k.mean is 'Mean over prompt rows of 1 − C(n − c, k) / C(n, k), for n samples of which c are right. NULL if any prompt row has fewer than k samples: the mean of the others is of other prompts, and may be lower than that of a smaller k.';
comment on column internal.pass_at_k.standard_error is 'Standard error of the mean, clustered as in accuracy. NULL for one cluster.';
comment on column internal.pass_at_k.mean_low is 'Lower end of the 95% interval for the mean; see the macro mean_interval.';
comment on column internal.pass_at_k.mean_high is 'Upper end of the interval.';

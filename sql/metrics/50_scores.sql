-- Mean scores, and scores of majority votes (self-consistency, Wang et al. 2022). For standard errors: sums over the
-- clusters of one size. A cluster is a value of prompts.columns.cluster, or a prompt without one.
-- Grain: one row per metric × scorer × size of cluster.
with samples as (
    select *, coalesce(cluster, prompt_id) as own_cluster
    from raw.scores
    left join prompt_cluster using (run_id, prompt_id, occurrence)
    where run_id = getvariable('run_id')
),

-- Scorers that extract all of the text have no vote: two such samples rarely agree.
votes as (
    select scorer, own_cluster, prompt_id, occurrence, extracted, count(*) as votes,
        min(repeat_index) as first_repeat, arg_min(value, repeat_index) as value
    from samples
    semi join (
        select scorer
        from raw.scorers
        where run_id = getvariable('run_id')
            and coalesce(arguments_json ->> '$.metric_id', kind) not in ('contains', 'token_f1', 'json')
    ) using (scorer)
    group by scorer, own_cluster, prompt_id, occurrence, extracted
),

-- Samples without an answer abstain: they win only if no other voted.
elected as (
    select scorer, own_cluster, prompt_id, sum(votes) as samples,
        arg_min(value, {'abstains': extracted is null, 'fewest': -votes, 'first': first_repeat}) as value
    from votes
    group by scorer, own_cluster, prompt_id, occurrence
),

-- A prompt row counts once, whatever the number of its repeats, as in compare_runs.
means as (
    select
        scorer,
        own_cluster,
        count(*) as samples,
        sum(value) as score_sum,
        avg(value) as value,
        avg(value) filter (error_kind is null) as answered_value,
        count(*) filter (value = 1) as right_samples,
        count(*) filter (error_kind is null) as answered_samples
    from samples
    group by scorer, own_cluster, prompt_id, occurrence
),

clusters as (
    select
        'accuracy' as metric,
        scorer,
        1 as most_samples,
        count(*) as size,
        sum(value) as total,
        sum(value ** 2) as squares,
        count(*) filter (value not in (0, 1)) as partial,
        sum(samples) as samples,
        sum(score_sum) as score_sum,
        sum(right_samples) as right_samples,
        sum(answered_samples) as answered_samples,
        count(answered_value) as answered,
        coalesce(sum(answered_value), 0) as answered_total
    from means
    group by scorer, own_cluster
    union all
    select
        'majority_vote', scorer, max(samples), count(*), sum(value), sum(value ** 2),
        count(*) filter (value not in (0, 1)), count(*), 0, 0, 0, 0, 0
    from elected
    group by scorer, own_cluster
)

select
    metric,
    scorer,
    size,
    max(most_samples) as most_samples,
    any_value(prompts) as prompts,
    count(*) as clusters,
    sum(total) as total,
    sum(total ** 2) as total_squares,
    sum(squares) as squares,
    sum(partial) as partial,
    sum(samples) as samples,
    sum(score_sum) as score_sum,
    sum(right_samples) as right_samples,
    sum(answered_samples) as answered_samples,
    sum(answered) as answered,
    sum(answered_total) as answered_total
from clusters
join (select scorer, count(distinct prompt_id) as prompts from samples group by scorer) using (scorer)
group by metric, scorer, size
order by metric, scorer, size;

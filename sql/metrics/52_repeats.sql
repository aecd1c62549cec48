-- Of prompts with repeats, for pass@k: right samples of their samples. Clusters with the same numbers are one row.
-- Grain: one row per scorer × what a cluster consists of.
with prompt_rows as (
    select
        scorer,
        any_value(coalesce(cluster, prompt_id)) as own_cluster,
        {'samples': count(*), 'right': count(*) filter (value = 1)} as counts,
        max(count(*)) over (partition by scorer) as most_samples
    from raw.scores
    left join prompt_cluster using (run_id, prompt_id, occurrence)
    where run_id = getvariable('run_id')
    group by scorer, prompt_id, occurrence
    qualify most_samples > 1
),

clusters as (
    select scorer, most_samples, list(counts order by counts) as prompts
    from prompt_rows
    group by scorer, most_samples, own_cluster
)

select scorer, most_samples, prompts, count(*) as clusters
from clusters
group by scorer, most_samples, prompts
order by scorer, prompts;

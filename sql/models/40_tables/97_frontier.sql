-- Grain: one row per benchmark × configuration of it, once its report is made.
--
-- Inference is in the table comparison (kind frontier): per task the recovery, and over all tasks the weighted means,
-- or the divergence in a benchmark by kl, whose cost is per token and not per right answer.
-- Speeds are medians over the repeats without a run.obstacle. Over several tasks: rates and costs of all tasks
-- together, and the worst of latencies, goodputs, KV caches and start-ups.
create or replace view main.frontier as
with

list_tasks as (
    select
        bases.benchmark_id,
        runs.config_id,
        runs.prompt_set,
        comparisons.detail as configuration,
        comparisons.difference as recovery,
        comparisons.run_id,
        comparisons.metric,
        comparisons.value,
        comparisons.low,
        comparisons.high,
        comparisons.n,
        comparisons.verdict,
        bool_or(comparisons.metric = 'kl') over (partition by bases.benchmark_id) as is_by_kl
    from raw.comparisons
    join raw.runs on runs.run_id = comparisons.run_id
    join raw.runs as bases on bases.run_id = comparisons.baseline_run_id
    where comparisons.kind = 'frontier' and bases.benchmark_id is not null
),

find_scorers as (
    select run_id, arg_min(scorer, (ordinal, scorer)) as scorer from raw.scorers group by run_id
),

take_values as (
    select
        metric_values.run_id,
        max(value) filter (metric = 'output_tokens_per_s') as output_tokens_per_s,
        max(value) filter (metric = 'output_tokens') as output_tokens,
        max(value) filter (metric = 'requests_per_s') as requests_per_s,
        max(value) filter (metric = 'ok_requests') as ok_requests,
        max(value) filter (metric = 'truncated_requests') as truncated_requests,
        min(value) filter (metric = 'good_requests_per_s') as good_requests_per_s,
        max(value) filter (metric = 'ttft_s' and statistic = 'p95') as ttft_p95_s,
        max(value) filter (metric = 'tpot_s' and statistic = 'p95') as tpot_p95_s,
        max(value) filter (metric = 'load_s') as load_s,
        max(value) filter (metric = 'energy_per_output_token_joules') as energy_per_output_token_joules,
        max(value) filter (metric = 'cost_per_million_output_tokens') as cost_per_million_output_tokens,
        max(value) filter (metric = 'cost_per_right_answer') as cost_per_right_answer,
        max(unit) filter (metric = 'cost_per_right_answer' and value is not null) as unit_per_right_answer,
        max(unit) filter (metric = 'cost_per_million_output_tokens' and value is not null) as unit_per_token,
        max(value) filter (metric = 'score_sum' and detail = scorer) as right_answers
    from raw.metric_values
    left join find_scorers on find_scorers.run_id = metric_values.run_id
    group by metric_values.run_id
),

-- Without a price, the cost is the time that the engines take.
price_runs as (
    select
        runs.benchmark_id,
        runs.config_id,
        runs.run_id,
        runs.started_at,
        runs.state = 'completed' as is_completed,
        case when runs.state = 'completed' then run_conditions.obstacle else coalesce(runs.message, runs.state) end
            as obstacle,
        take_values.* exclude (run_id),
        ok_requests / nullif(requests_per_s, 0) as answering_s,
        case
            when is_by_kl then coalesce(cost_per_million_output_tokens * output_tokens / 1e6, answering_s)
            when right_answers > 0 then coalesce(cost_per_right_answer * right_answers, answering_s)
        end as cost,
        case when is_by_kl then output_tokens / 1e6 else right_answers end as cost_units,
        case when is_by_kl then unit_per_token else unit_per_right_answer end as cost_unit,
        engine.kv_cache_tokens
    from raw.runs
    left join internal.run_conditions on run_conditions.run_id = runs.run_id
    left join take_values on take_values.run_id = runs.run_id
    left join (select distinct benchmark_id, is_by_kl from list_tasks) as qualities
        on qualities.benchmark_id = runs.benchmark_id
    left join (
        select run_id, sum(kv_cache_tokens) as kv_cache_tokens
        from main.engine
        where engine_generation = 0
        group by run_id
    ) as engine on engine.run_id = runs.run_id
    where runs.benchmark_id is not null and runs.state <> 'running'
),

measure_configs as (
    select
        benchmark_id,
        config_id,
        list(run_id order by started_at, run_id) as runs,
        count(*) filter (obstacle is null) as repeats,
        case when repeats = 0 then max_by(obstacle, started_at) end as obstacle,
        median(truncated_requests) filter (is_completed) as truncated_requests,
        median(ok_requests) filter (is_completed) as ok_requests,
        median(cost_units) filter (is_completed) as cost_units,
        median(output_tokens) filter (is_completed) as output_tokens,
        median(output_tokens_per_s) filter (obstacle is null) as output_tokens_per_s,
        median(good_requests_per_s) filter (obstacle is null) as good_requests_per_s,
        median(ttft_p95_s) filter (obstacle is null) as ttft_p95_s,
        median(tpot_p95_s) filter (obstacle is null) as tpot_p95_s,
        max(load_s) as load_s,
        median(kv_cache_tokens) as kv_cache_tokens,
        median(energy_per_output_token_joules) filter (obstacle is null) as energy_per_output_token_joules,
        median(cost_per_million_output_tokens) filter (obstacle is null) as cost_per_million_output_tokens,
        max(cost_unit) as cost_unit,
        median(cost) filter (obstacle is null) as cost,
        min(cost) filter (obstacle is null) as cost_low,
        max(cost) filter (obstacle is null) as cost_high
    from price_runs
    group by benchmark_id, config_id
),

add_tasks as (
    select
        benchmark_id,
        configuration,
        list_sort(flatten(list(runs))) as runs,
        count(*) as tasks,
        min(repeats) as repeats,
        string_agg(distinct obstacle, '; ') as obstacle,
        case when count(recovery) > 1 then arg_min(prompt_set, recovery) end as worst_task,
        case when count(recovery) > 1 then min(recovery) end as worst_recovery,
        sum(truncated_requests) / nullif(sum(ok_requests), 0) as truncated_share,
        sum(output_tokens) / nullif(sum(output_tokens / output_tokens_per_s), 0) as output_tokens_per_s,
        min(good_requests_per_s) as good_requests_per_s,
        max(ttft_p95_s) as ttft_p95_s,
        max(tpot_p95_s) as tpot_p95_s,
        cast(min(kv_cache_tokens) as bigint) as kv_cache_tokens,
        max(load_s) as load_s,
        sum(energy_per_output_token_joules * output_tokens) / nullif(sum(output_tokens), 0)
            as energy_per_output_token_joules,
        sum(cost_per_million_output_tokens * output_tokens) / nullif(sum(output_tokens), 0)
            as cost_per_million_output_tokens,
        case when count(cost) = count(*) then sum(cost) / sum(cost_units) end as cost,
        case when count(cost) = count(*) then sum(cost_low) / sum(cost_units) end as cost_low,
        case when count(cost) = count(*) then sum(cost_high) / sum(cost_units) end as cost_high,
        coalesce(max(cost_unit), case when bool_or(is_by_kl) then 's/million tokens' else 's/correct answer' end)
            as cost_unit
    from list_tasks
    left join measure_configs using (benchmark_id, config_id)
    where metric = 'recovery'
    group by benchmark_id, configuration
),

take_means as (
    select
        benchmark_id,
        configuration,
        max(value) filter (metric = 'mean_accuracy') as accuracy,
        max(recovery) filter (metric = 'mean_accuracy') as difference,
        max(low) filter (metric = 'mean_accuracy') as difference_low,
        max(high) filter (metric = 'mean_accuracy') as difference_high,
        max(n) filter (metric = 'mean_accuracy') as prompts,
        max(recovery) filter (metric = 'mean_recovery') as recovery,
        max(low) filter (metric = 'mean_recovery') as recovery_low,
        max(high) filter (metric = 'mean_recovery') as recovery_high,
        max(value) filter (metric = 'noise_floor') as accuracy_noise_floor,
        max(value) filter (metric = 'kl') as kl,
        max(low) filter (metric = 'kl') as kl_low,
        max(high) filter (metric = 'kl') as kl_high,
        max(recovery) filter (metric = 'kl') as kl_ratio,
        max(n) filter (metric = 'kl') as kl_prompts,
        max(run_id) filter (metric = 'kl' and verdict in ('pass', 'fail', 'inconclusive')) as reading_run_id,
        max(verdict) filter (metric = case when is_by_kl then 'kl' else 'mean_accuracy' end and verdict <> 'too_few')
            as verdict,
        bool_or(is_by_kl) as is_by_kl
    from list_tasks
    group by benchmark_id, configuration
),

join_parts as (
    select
        take_means.*,
        add_tasks.* exclude (benchmark_id, configuration),
        case when is_by_kl then -kl else recovery end as closeness
    from take_means
    join add_tasks using (benchmark_id, configuration)
),

find_frontier as (
    select benchmark_id, configuration
    from join_parts
    anti join join_parts as other
        on other.benchmark_id = join_parts.benchmark_id
        and other.closeness >= join_parts.closeness
        and other.cost <= join_parts.cost
        and (other.closeness, other.cost) <> (join_parts.closeness, join_parts.cost)
    where closeness is not null and cost is not null
)

select
    join_parts.* exclude (is_by_kl, closeness),
    case when is_by_kl then 'kl' else 'accuracy' end as quality,
    case when closeness is not null and cost is not null then find_frontier.configuration is null end as is_dominated,
    coalesce(verdict in ('pass', 'baseline'), false) and cost is not null and row_number() over (
        partition by join_parts.benchmark_id, verdict in ('pass', 'baseline')
        order by cost, verdict, join_parts.configuration
    ) = 1 as is_best
from join_parts
left join find_frontier using (benchmark_id, configuration)
order by
    join_parts.benchmark_id,
    is_best desc,
    list_position(['baseline', 'inconclusive', 'fail'], replace(verdict, 'pass', 'baseline')),
    cost,
    join_parts.configuration;

comment on view main.frontier is 'One row per benchmark × configuration: how much of the baseline''s quality it keeps, its speed and cost, and which is the cheapest that is shown to keep the limit. A benchmark''s report stores what it needs.';
comment on column main.frontier.benchmark_id is 'The benchmark.';
comment on column main.frontier.configuration is 'The fields that are varied with their values, such as model=int4.';
comment on column main.frontier.accuracy is 'Mean score of the first scorer over prompts that the baseline has, too, repeats averaged first; over several tasks, the weighted mean. NULL without scores, like the next nine.';
comment on column main.frontier.difference is 'accuracy − the baseline''s, paired by prompt.';
comment on column main.frontier.difference_low is 'Lower end of its 95% interval. Over several tasks, they are taken for independent and normal. NULL for fewer than five effective prompts, and for the baseline, like all intervals here.';
comment on column main.frontier.difference_high is 'Upper end.';
comment on column main.frontier.prompts is 'Prompts in pairs, of all tasks.';
comment on column main.frontier.recovery is 'accuracy / the baseline''s, 1 for the baseline; over several tasks, the weighted mean of their recoveries. NULL if the baseline has no right answer.';
comment on column main.frontier.recovery_low is 'Lower end of its 95% interval: Fieller''s with two pairs more, so that it leaves out 1 exactly if the interval of the difference leaves out 0. Over several tasks, by the squares of their half-widths (MOVER, Zou and Donner 2008).';
comment on column main.frontier.recovery_high is 'Upper end.';
comment on column main.frontier.accuracy_noise_floor is 'Difference of accuracy that two equal runs exceed in at most 5% of pairs; see noise. NULL for fewer than five repeats.';
comment on column main.frontier.kl is 'In a benchmark by kl, the divergence of its probabilities of the baseline''s answers, as in metric_value; for the baseline, its floor. Otherwise NULL, like the next five.';
comment on column main.frontier.kl_low is 'Lower end of its 95% interval. NULL for the baseline.';
comment on column main.frontier.kl_high is 'Upper end.';
comment on column main.frontier.kl_ratio is 'How many times the floor a typical prompt diverges.';
comment on column main.frontier.kl_prompts is 'Prompts whose answer both engines have read.';
comment on column main.frontier.reading_run_id is 'The run in which its engine read the answers. NULL for the baseline.';
comment on column main.frontier.verdict is 'baseline; pass: difference shown within gate.max_accuracy_drop (with weights its weighted mean); fail: shown beyond it, adjusted for all configurations (Holm); inconclusive otherwise. By kl: shown within or beyond the limit of a reread (Bonferroni). NULL without scores or a reading.';
comment on column main.frontier.runs is 'Ids of its runs.';
comment on column main.frontier.tasks is 'Evaluations that it was measured on.';
comment on column main.frontier.repeats is 'Runs without a run.obstacle, of the task that has the fewest.';
comment on column main.frontier.obstacle is 'Why no run counts: the message of the last failed one, such as a lack of memory with the sizes that were tried, or run.obstacle. NULL if one counts.';
comment on column main.frontier.worst_task is 'Prompt set with the lowest recovery. NULL for a single task.';
comment on column main.frontier.worst_recovery is 'Its recovery.';
comment on column main.frontier.truncated_share is 'Share of ok requests that max_tokens cut off, 0 to 1.';
comment on column main.frontier.output_tokens_per_s is 'Output tokens per second, median over repeats; of all tasks together.';
comment on column main.frontier.good_requests_per_s is 'Goodput by the SLO that has the lowest, requests per second. NULL without an SLO.';
comment on column main.frontier.ttft_p95_s is '95th percentile of TTFT, seconds.';
comment on column main.frontier.tpot_p95_s is '95th percentile of TPOT, seconds.';
comment on column main.frontier.kv_cache_tokens is 'Tokens that the KV caches of the first engines hold. NULL if they report none.';
comment on column main.frontier.load_s is 'Longest start of an engine, seconds.';
comment on column main.frontier.energy_per_output_token_joules is 'Joules per output token. NULL if power is not measured.';
comment on column main.frontier.cost_per_million_output_tokens is 'Cost per million output tokens. NULL without a price.';
comment on column main.frontier.cost is 'Cost per right answer of all tasks together in cost_unit, median over repeats; without a price, seconds of answering / right answers. By kl: per million output tokens.';
comment on column main.frontier.cost_low is 'The same of the cheapest repeats.';
comment on column main.frontier.cost_high is 'The same of the most expensive repeats.';
comment on column main.frontier.cost_unit is 'Currency per right answer, or s/correct answer without a price; by kl EUR/million tokens or s/million tokens.';
comment on column main.frontier.quality is 'Quality by which the benchmark chooses: accuracy or kl.';
comment on column main.frontier.is_dominated is 'Whether another configuration has at least this recovery (by kl, at most this kl) at no higher cost, and one of both is better. NULL without either.';
comment on column main.frontier.is_best is 'Whether it is the cheapest of those whose verdict is baseline or pass.';

-- Grain: one row per metric of run_metric that both configurations have a value for.
--
-- The columns are those of compare_repeats. Accuracy is left out, as compare_runs compares it by prompt. Repeats are
-- all runs of a configuration without an obstacle (run_conditions), in the environment in which it ran last.
create or replace macro main.compare_configs(
    candidate,
    baseline,
    limits := map {'output_tokens_per_s': 0.05, 'tpot_p50_s': 0.1, 'e2e_p95_s': 0.1},
    other_limit := 0.02
) as table
with

compare_sides as (
    select *
    from internal.compare_repeats(
        (
            select list(run_id order by run_id)
            from (
                select run_id, environment, last(environment order by started_at, run_id) over () as last_environment
                from internal.run_conditions
                where config_id = candidate and obstacle is null
            )
            where environment = last_environment
        ),
        (
            select list(run_id order by run_id)
            from (
                select run_id, environment, last(environment order by started_at, run_id) over () as last_environment
                from internal.run_conditions
                where config_id = baseline and obstacle is null
            )
            where environment = last_environment
        ),
        limits := limits,
        other_limit := other_limit
    )
    where metric <> 'accuracy'
)

select * from compare_sides;

comment on macro table main.compare_configs is 'compare_configs(candidate, baseline), two config_ids: one row per metric, speed and cost compared over the repeats of two configurations. See compare_repeats.';

-- Grain: one row per run × metric that can be compared between runs.
create or replace view run_metric as
with

-- From one view, as each that is read has to be planned, and this is planned often. Costs and energies of runs without
-- a price or a sensor are no rows at all: there is nothing that could be compared.
stack_costs as (
    select run_id, metric, value, currency
    from (
        select
            run_id,
            currency,
            requests_per_s,
            output_tokens_per_s,
            total_tokens_per_s,
            accuracy,
            cost_per_million_output_tokens,
            cost_per_thousand_requests,
            cost_per_right_answer,
            energy_per_output_token_joules,
            energy_per_request_joules
        from run_cost
    )
    unpivot include nulls (value for metric in (
        requests_per_s,
        output_tokens_per_s,
        total_tokens_per_s,
        accuracy,
        cost_per_million_output_tokens,
        cost_per_thousand_requests,
        cost_per_right_answer,
        energy_per_output_token_joules,
        energy_per_request_joules
    ))
    where value is not null or metric in ('requests_per_s', 'output_tokens_per_s', 'total_tokens_per_s', 'accuracy')
),

name_percentiles as (
    select
        run_id,
        replace(metric, '_s', '') || '_p' || cast(cast(percentile * 100 as integer) as varchar) || '_s' as metric,
        value_s as value
    from latency_percentile
    where metric in ('ttft_s', 'tpot_s', 'e2e_s') and percentile in (0.5, 0.95, 0.99)
),

join_metrics as (
    select run_id, metric, value, currency from stack_costs
    union all
    select run_id, metric, value, null from name_percentiles
),

describe_metrics as (
    select
        run_id,
        metric,
        value,
        case
            when metric = 'accuracy' then 'share'
            when metric = 'requests_per_s' then 'requests/s'
            when metric like '%tokens_per_s' then 'tokens/s'
            when metric = 'cost_per_million_output_tokens' then currency || '/million tokens'
            when metric = 'cost_per_thousand_requests' then currency || '/thousand requests'
            when metric = 'cost_per_right_answer' then currency || '/right answer'
            when metric = 'energy_per_output_token_joules' then 'J/token'
            when metric = 'energy_per_request_joules' then 'J/request'
            else 's'
        end as unit,
        metric = 'accuracy' or metric like '%\_per\_s' escape '\' as higher_is_better
    from join_metrics
)

select * from describe_metrics;

comment on view run_metric is 'One row per run × metric that can be compared between runs. compare_repeats compares them over repeats.';
comment on column run_metric.run_id is 'The run.';
comment on column run_metric.metric is 'requests_per_s, output_tokens_per_s, total_tokens_per_s or accuracy of run_summary, or <latency>_p<percentile>_s: ttft, tpot and e2e at 50, 95 and 99 of latency_percentile; of run_cost, where they are known, cost_per_million_output_tokens, cost_per_thousand_requests, cost_per_right_answer, energy_per_output_token_joules and energy_per_request_joules.';
comment on column run_metric.value is 'Its value in this run. NULL where it is undefined or was not measured.';
comment on column run_metric.unit is 'requests/s, tokens/s, share or s; of costs the currency per what it buys; of energies J/token or J/request. Costs in two currencies are not compared.';
comment on column run_metric.higher_is_better is 'True for throughput and accuracy, false for latencies, costs and energies.';

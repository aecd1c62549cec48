-- Grain: one row per run × metric, of what a run with a price cost and of the energy that was measured.
create or replace view internal.cost_value as
with

list_costs as (
    select
        run_id,
        unnest([
            {'metric': 'cost', 'value': cost, 'low': null, 'high': null, 'unit': currency},
            {'metric': 'cost_per_million_output_tokens', 'value': cost_per_million_output_tokens,
                'low': null, 'high': null, 'unit': currency || '/million tokens'},
            {'metric': 'cost_per_thousand_requests', 'value': cost_per_thousand_requests,
                'low': null, 'high': null, 'unit': currency || '/thousand requests'},
            {'metric': 'cost_per_right_answer', 'value': cost_per_right_answer,
                'low': cost_per_right_answer_low, 'high': cost_per_right_answer_high,
                'unit': currency || '/right answer'},
            {'metric': 'full_cost_per_right_answer', 'value': full_cost_per_right_answer,
                'low': full_cost_per_right_answer_low, 'high': full_cost_per_right_answer_high,
                'unit': currency || '/right answer'},
            {'metric': 'energy_per_output_token_joules', 'value': energy_per_output_token_joules,
                'low': null, 'high': null, 'unit': 'J/token'},
            {'metric': 'energy_per_request_joules', 'value': energy_per_request_joules,
                'low': null, 'high': null, 'unit': 'J/request'},
            {'metric': 'output_tokens_per_joule', 'value': output_tokens_per_joule,
                'low': null, 'high': null, 'unit': 'tokens/J'},
            {'metric': 'mean_power_watts', 'value': mean_power_watts, 'low': null, 'high': null, 'unit': 'W'}
        ]) as row
    from run_cost
),

join_energies as (
    select run_id, row.metric, row.value, row.low, row.high, row.unit from list_costs
    union all
    select
        run_id,
        'energy_joules',
        energy_joules,
        energy_joules - energy_error_joules,
        energy_joules + energy_error_joules,
        'J'
    from run_energy
    union all
    select run_id, 'idle_joules', idle_joules, null, null, 'J' from run_energy
),

name_columns as (
    select
        run_id,
        metric,
        case when metric in ('cost', 'energy_joules', 'idle_joules') then 'total' else 'mean' end as statistic,
        cast(null as varchar) as detail,
        cast(value as double) as value,
        cast(low as double) as low,
        cast(high as double) as high,
        cast(null as bigint) as n,
        unit,
        metric = 'output_tokens_per_joule' as higher_is_better
    from join_energies
    where value is not null and unit is not null
)

select * from name_columns;

comment on view internal.cost_value is 'One row per run × metric, of what a run with a price cost and of the energy that was measured. A source of metric_values.';
comment on column internal.cost_value.run_id is 'The run.';
comment on column internal.cost_value.metric is 'Name of the metric; see metric_values, also for the other columns.';
comment on column internal.cost_value.statistic is 'Which statistic of it.';
comment on column internal.cost_value.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column internal.cost_value.value is 'The value, in `unit`.';
comment on column internal.cost_value.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column internal.cost_value.high is 'Upper end.';
comment on column internal.cost_value.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column internal.cost_value.unit is 'Its unit.';
comment on column internal.cost_value.higher_is_better is 'Whether more is better. NULL if neither is.';

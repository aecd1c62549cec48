-- Grain: one row per run × metric × statistic, the speed, size and time columns of run_summary.
create or replace view internal.speed_value as
with

list_values as (
    select
        run_id,
        unnest([
            {'metric': 'requests_per_s', 'statistic': 'mean', 'value': requests_per_s, 'n': ok_requests,
                'unit': 'requests/s', 'higher_is_better': true},
            {'metric': 'output_tokens_per_s', 'statistic': 'mean', 'value': output_tokens_per_s, 'n': ok_requests,
                'unit': 'tokens/s', 'higher_is_better': true},
            {'metric': 'total_tokens_per_s', 'statistic': 'mean', 'value': total_tokens_per_s, 'n': ok_requests,
                'unit': 'tokens/s', 'higher_is_better': true},
            {'metric': 'in_flight_requests', 'statistic': 'mean', 'value': mean_in_flight_requests, 'n': null,
                'unit': 'requests', 'higher_is_better': null},
            {'metric': 'in_flight_requests', 'statistic': 'max', 'value': max_in_flight_requests, 'n': null,
                'unit': 'requests', 'higher_is_better': null},
            {'metric': 'prefix_cache_hit_rate', 'statistic': 'mean', 'value': prefix_cache_hit_rate,
                'n': prompt_tokens, 'unit': 'share', 'higher_is_better': true},
            {'metric': 'output_tokens_per_step', 'statistic': 'mean', 'value': output_tokens_per_step,
                'n': engine_steps, 'unit': 'tokens', 'higher_is_better': true},
            {'metric': 'concurrency_used_share', 'statistic': 'mean', 'value': window_share, 'n': engine_steps,
                'unit': 'share', 'higher_is_better': true},
            {'metric': 'expected_requests', 'statistic': 'total', 'value': expected_requests, 'n': null,
                'unit': 'requests', 'higher_is_better': null},
            {'metric': 'ok_requests', 'statistic': 'total', 'value': ok_requests, 'n': expected_requests,
                'unit': 'requests', 'higher_is_better': true},
            {'metric': 'error_requests', 'statistic': 'total', 'value': error_requests, 'n': expected_requests,
                'unit': 'requests', 'higher_is_better': false},
            {'metric': 'missing_requests', 'statistic': 'total', 'value': missing_requests, 'n': expected_requests,
                'unit': 'requests', 'higher_is_better': false},
            {'metric': 'unsent_requests', 'statistic': 'total', 'value': unsent_requests, 'n': expected_requests,
                'unit': 'requests', 'higher_is_better': null},
            {'metric': 'retried_requests', 'statistic': 'total', 'value': retried_requests, 'n': answered_requests,
                'unit': 'requests', 'higher_is_better': false},
            {'metric': 'context_limited_requests', 'statistic': 'total', 'value': context_limited_requests,
                'n': ok_requests, 'unit': 'requests', 'higher_is_better': false},
            {'metric': 'truncated_requests', 'statistic': 'total', 'value': truncated_requests,
                'n': ok_requests, 'unit': 'requests', 'higher_is_better': false},
            {'metric': 'truncated_share', 'statistic': 'mean', 'value': truncated_share, 'n': ok_requests,
                'unit': 'share', 'higher_is_better': false},
            {'metric': 'unasked_rows', 'statistic': 'total', 'value': unasked_rows, 'n': null,
                'unit': 'rows', 'higher_is_better': false},
            {'metric': 'error_share', 'statistic': 'mean', 'value': error_share, 'n': answered_requests,
                'unit': 'share', 'higher_is_better': false},
            {'metric': 'prompt_tokens', 'statistic': 'total', 'value': prompt_tokens, 'n': ok_requests,
                'unit': 'tokens', 'higher_is_better': null},
            {'metric': 'output_tokens', 'statistic': 'total', 'value': output_tokens, 'n': ok_requests,
                'unit': 'tokens', 'higher_is_better': null},
            {'metric': 'load_s', 'statistic': 'total', 'value': load_s, 'n': null,
                'unit': 's', 'higher_is_better': false},
            {'metric': 'warmup_s', 'statistic': 'total', 'value': warmup_s, 'n': null,
                'unit': 's', 'higher_is_better': false},
            {'metric': 'resume_load_s', 'statistic': 'total', 'value': resume_load_s, 'n': null,
                'unit': 's', 'higher_is_better': false},
            {'metric': 'duration_s', 'statistic': 'total', 'value': duration_s, 'n': null,
                'unit': 's', 'higher_is_better': false},
            {'metric': 'downtime_s', 'statistic': 'total', 'value': downtime_s, 'n': null,
                'unit': 's', 'higher_is_better': false},
            {'metric': 'lost_s', 'statistic': 'total', 'value': lost_s, 'n': null,
                'unit': 's', 'higher_is_better': false},
            {'metric': 'recovery_s', 'statistic': 'total', 'value': recovery_s, 'n': rebuilds,
                'unit': 's', 'higher_is_better': false},
            {'metric': 'engine_failures', 'statistic': 'total', 'value': engine_failures, 'n': null,
                'unit': 'engines', 'higher_is_better': false},
            {'metric': 'attempts', 'statistic': 'total', 'value': attempts, 'n': null,
                'unit': 'attempts', 'higher_is_better': false},
            {'metric': 'rebuilds', 'statistic': 'total', 'value': rebuilds, 'n': null,
                'unit': 'engines', 'higher_is_better': false},
            {'metric': 'reductions', 'statistic': 'total', 'value': reductions, 'n': null,
                'unit': 'times', 'higher_is_better': false},
            {'metric': 'isolated_requests', 'statistic': 'total', 'value': isolated_requests, 'n': null,
                'unit': 'requests', 'higher_is_better': false},
            {'metric': 'preemptions', 'statistic': 'total', 'value': preemptions, 'n': ok_requests,
                'unit': 'preemptions', 'higher_is_better': false}
        ]) as row
    from run_summary
),

name_columns as (
    select
        run_id,
        row.metric,
        row.statistic,
        cast(null as varchar) as detail,
        cast(row.value as double) as value,
        cast(null as double) as low,
        cast(null as double) as high,
        cast(row.n as bigint) as n,
        row.unit,
        cast(row.higher_is_better as boolean) as higher_is_better
    from list_values
)

select * from name_columns;

comment on view internal.speed_value is 'One row per run × metric × statistic, the speed, size and time columns of run_summary. A source of metric_values.';
comment on column internal.speed_value.run_id is 'The run.';
comment on column internal.speed_value.metric is 'Name of the metric; see metric_values, also for the other columns.';
comment on column internal.speed_value.statistic is 'Which statistic of it.';
comment on column internal.speed_value.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column internal.speed_value.value is 'The value, in `unit`.';
comment on column internal.speed_value.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column internal.speed_value.high is 'Upper end.';
comment on column internal.speed_value.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column internal.speed_value.unit is 'Its unit.';
comment on column internal.speed_value.higher_is_better is 'Whether more is better. NULL if neither is.';

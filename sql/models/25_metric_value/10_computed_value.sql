-- Grain: one row per run × metric × statistic × detail.
create or replace view internal.computed_value as
with

list_runs as (
    select run_id, named.*
    from run_summary, lateral (values
        ('requests_per_s', 'mean', requests_per_s, round(requests_per_s * measured_s), 'requests/s', true),
        ('output_tokens_per_s', 'mean', output_tokens_per_s, round(requests_per_s * measured_s), 'tokens/s', true),
        ('total_tokens_per_s', 'mean', total_tokens_per_s, round(requests_per_s * measured_s), 'tokens/s', true),
        ('in_flight_requests', 'mean', mean_in_flight_requests, null, 'requests', null),
        ('in_flight_requests', 'max', max_in_flight_requests, null, 'requests', null),
        ('prefix_cache_hit_rate', 'mean', prefix_cache_hit_rate, prompt_tokens, 'share', true),
        ('output_tokens_per_step', 'mean', output_tokens_per_step, engine_steps, 'tokens', true),
        ('concurrency_used_share', 'mean', window_share, engine_steps, 'share', true),
        ('expected_requests', 'total', expected_requests, null, 'requests', null),
        ('ok_requests', 'total', ok_requests, expected_requests, 'requests', true),
        ('error_requests', 'total', error_requests, expected_requests, 'requests', false),
        ('missing_requests', 'total', missing_requests, expected_requests, 'requests', false),
        ('unsent_requests', 'total', unsent_requests, expected_requests, 'requests', null),
        ('retried_requests', 'total', retried_requests, answered_requests, 'requests', false),
        ('context_limited_requests', 'total', context_limited_requests, ok_requests, 'requests', false),
        ('truncated_requests', 'total', truncated_requests, ok_requests, 'requests', false),
        ('truncated_share', 'mean', truncated_share, ok_requests, 'share', false),
        ('unasked_rows', 'total', unasked_rows, null, 'rows', false),
        ('error_share', 'mean', error_share, answered_requests, 'share', false),
        ('prompt_tokens', 'total', prompt_tokens, ok_requests, 'tokens', null),
        ('output_tokens', 'total', output_tokens, ok_requests, 'tokens', null),
        ('load_s', 'total', load_s, null, 's', false),
        ('warmup_s', 'total', warmup_s, null, 's', false),
        ('resume_load_s', 'total', resume_load_s, null, 's', false),
        ('duration_s', 'total', duration_s, null, 's', false),
        ('downtime_s', 'total', downtime_s, null, 's', false),
        ('lost_s', 'total', lost_s, null, 's', false),
        ('recovery_s', 'total', recovery_s, rebuilds, 's', false),
        ('engine_failures', 'total', engine_failures, null, 'engines', false),
        ('attempts', 'total', attempts, null, 'attempts', false),
        ('rebuilds', 'total', rebuilds, null, 'engines', false),
        ('reductions', 'total', reductions, null, 'times', false),
        ('isolated_requests', 'total', isolated_requests, null, 'requests', false),
        ('preemptions', 'total', preemptions, ok_requests, 'preemptions', false)
    ) as named(metric, statistic, value, n, unit, higher_is_better)
),

list_latencies as (
    select
        run_id,
        metric,
        replace('p' || cast(cast(percentile * 1000 as integer) / 10 as varchar), '.0', '') as statistic,
        value_s as value,
        low_s as low,
        high_s as high,
        n
    from latency_percentile
),

list_lags as (
    select run_id, 'send_lag_s' as metric, named.*, requests as n
    from send_lag, lateral (
        values ('p50', p50_s), ('p95', p95_s), ('p99', p99_s), ('max', max_s)
    ) as named(statistic, value)
),

join_latencies as (
    select *, 's' as unit, false as higher_is_better
    from (from list_latencies union all by name from list_lags)
),

list_accuracies as (
    select run_id, scorer as detail, named.*
    from accuracy, lateral (values
        ('accuracy', 'mean', mean, mean_low, mean_high, samples, 'share', true),
        ('accuracy_without_errors', 'mean', mean_without_errors, null, null, answered_samples, 'share', true),
        ('scored_prompts', 'total', prompts, null, null, samples, 'prompts', null)
    ) as named(metric, statistic, value, low, high, n, unit, higher_is_better)
),

-- Answers that max_tokens cut off, and the others.
split_truncated as (
    select
        run_id,
        scorer,
        case when truncated then 'accuracy_truncated' else 'accuracy_not_truncated' end as metric,
        avg(value) as value,
        count(*) as n
    from raw.scores
    join stg_samples using (run_id, prompt_id, occurrence, repeat_index)
    where truncated is not null
    group by run_id, scorer, truncated
),

list_repeats as (
    select run_id, scorer, 'pass@' || k as metric, mean as value, mean_low as low, mean_high as high, prompts as n
    from pass_at_k
    union all
    select run_id, scorer, 'majority_vote', mean, mean_low, mean_high, prompts
    from majority_vote
),

join_scores as (
    select * rename (scorer as detail), 'share' as unit, true as higher_is_better
    from (from split_truncated union all by name from list_repeats)
    union all by name
    from list_accuracies
),

list_goodput as (
    select run_id, slo as detail, named.*, requests as n, true as higher_is_better
    from goodput, lateral (values
        ('good_share', good_share, 'share'),
        ('good_requests_per_s', good_requests_per_s, 'requests/s'),
        ('good_output_tokens_per_s', good_output_tokens_per_s, 'tokens/s')
    ) as named(metric, value, unit)
),

list_loads as (
    select run_id, named.*
    from saturation, lateral (values
        ('offered_requests_per_s', offered_requests_per_s, 'requests/s'),
        ('in_flight_growth_per_s', in_flight_growth_per_s, 'requests/s'),
        ('is_saturated', cast(is_saturated as integer), 'flag')
    ) as named(metric, value, unit)
),

join_loads as (
    from list_goodput
    union all by name
    from list_loads
    union all by name
    select
        run_id,
        'kept_up' as metric,
        cast(kept_up as integer) as value,
        requests as n,
        'flag' as unit,
        true as higher_is_better
    from send_lag
),

list_costs as (
    select run_id, named.*
    from run_cost, lateral (values
        ('cost', 'total', cost, null, null, currency),
        ('cost_per_million_output_tokens', 'mean', cost_per_million_output_tokens, null, null,
            currency || '/million tokens'),
        ('cost_per_thousand_requests', 'mean', cost_per_thousand_requests, null, null,
            currency || '/thousand requests'),
        ('cost_per_right_answer', 'mean', cost_per_right_answer, cost_per_right_answer_low,
            cost_per_right_answer_high, currency || '/right answer'),
        ('full_cost_per_right_answer', 'mean', full_cost_per_right_answer, full_cost_per_right_answer_low,
            full_cost_per_right_answer_high, currency || '/right answer'),
        ('energy_per_output_token_joules', 'mean', energy_per_output_token_joules, null, null, 'J/token'),
        ('energy_per_request_joules', 'mean', energy_per_request_joules, null, null, 'J/request'),
        ('output_tokens_per_joule', 'mean', output_tokens_per_joule, null, null, 'tokens/J'),
        ('mean_power_watts', 'mean', mean_power_watts, null, null, 'W')
    ) as named(metric, statistic, value, low, high, unit)
),

list_energies as (
    select run_id, 'total' as statistic, 'J' as unit, named.*
    from run_energy, lateral (values
        ('energy_joules', energy_joules),
        ('idle_joules', idle_joules)
    ) as named(metric, value)
),

join_costs as (
    select *, metric = 'output_tokens_per_joule' as higher_is_better
    from (from list_costs union all by name from list_energies)
    where value is not null and unit is not null
),

list_media as (
    select run_id, named.*
    from media_use, lateral (values
        ('images_per_s', 'mean', images_per_s, images, 'images/s', true),
        ('megapixels_per_s', 'mean', megapixels_per_s, images, 'megapixels/s', true),
        ('audio_s_per_s', 'mean', audio_s_per_s, audios, 's/s', true),
        ('video_s_per_s', 'mean', video_s_per_s, videos, 's/s', true),
        ('media_tokens_per_s', 'mean', media_tokens_per_s, media_requests, 'tokens/s', true),
        ('text_tokens_per_s', 'mean', text_tokens_per_s, media_requests, 'tokens/s', true),
        ('media_prepare_s', 'p50', prepare_p50_s, media_requests, 's', false),
        ('media_prepare_s', 'p95', prepare_p95_s, media_requests, 's', false)
    ) as named(metric, statistic, value, n, unit, higher_is_better)
    where value is not null
),

list_drafts as (
    select run_id, named.*, true as higher_is_better
    from draft_use, lateral (values
        ('acceptance_length', acceptance_length, drafts, 'tokens/step'),
        ('draft_acceptance', draft_acceptance, draft_tokens, 'share')
    ) as named(metric, value, n, unit)
    where position = 1
),

join_values as (
    from list_runs
    union all by name
    from join_latencies
    union all by name
    from join_scores
    union all by name
    from join_loads
    union all by name
    from join_costs
    union all by name
    from list_media
    union all by name
    from list_drafts
),

name_columns as (
    select
        join_values.run_id,
        join_values.metric,
        coalesce(statistic, 'mean') as statistic,
        cast(detail as varchar) as detail,
        cast(value as double) as value,
        cast(coalesce(low, value * (1 - half_share)) as double) as low,
        cast(coalesce(high, value * (1 + half_share)) as double) as high,
        cast(n as bigint) as n,
        unit,
        cast(higher_is_better as boolean) as higher_is_better
    from join_values
    left join rate_interval
        on rate_interval.run_id = join_values.run_id
        and rate_interval.metric = join_values.metric
        and rate_interval.slo is not distinct from cast(detail as varchar)
)

select * from name_columns;

comment on view internal.computed_value is 'One row per run × metric × statistic × detail: what metric_values stores, computed from requests, samples, scores, telemetry and events.';
comment on column internal.computed_value.run_id is 'The run.';
comment on column internal.computed_value.metric is 'Name of the metric; see metric_values, also for the other columns.';
comment on column internal.computed_value.statistic is 'Which statistic of it.';
comment on column internal.computed_value.detail is 'Scorer or latency objective (SLO) of the value. NULL for metrics that a run has only once.';
comment on column internal.computed_value.value is 'The value, in `unit`.';
comment on column internal.computed_value.low is 'Lower end of its 95% interval. NULL if there is none.';
comment on column internal.computed_value.high is 'Upper end.';
comment on column internal.computed_value.n is 'Number of requests, samples or prompts that it was computed from. NULL if a count is meaningless.';
comment on column internal.computed_value.unit is 'Its unit.';
comment on column internal.computed_value.higher_is_better is 'Whether more is better. NULL if neither is.';

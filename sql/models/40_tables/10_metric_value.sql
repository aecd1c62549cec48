-- Grain: one row per run that has ended × metric × statistic × detail.
-- columns of: raw.metric_values, raw.runs
create or replace view main.metric_value as
with

join_runs as (
    select
        metric_values.run_id,
        runs.name,
        runs.model,
        runs.prompt_set,
        runs.config_id,
        runs.benchmark_id,
        runs.state,
        runs.started_at,
        metric_values.metric,
        metric_values.statistic,
        metric_values.detail,
        metric_values.value,
        metric_values.low,
        metric_values.high,
        metric_values.n,
        metric_values.unit,
        metric_values.higher_is_better,
        case
            when metric in (
                'ttft_s', 'queue_s', 'prefill_s', 'decode_s', 'tpot_s', 'itl_s', 'e2e_s',
                'good_share', 'good_requests_per_s', 'good_output_tokens_per_s'
            ) or (
                overload.sent_late and metric in ('requests_per_s', 'output_tokens_per_s', 'total_tokens_per_s')
            )
            then overload.obstacle
        end as obstacle
    from raw.metric_values
    join raw.runs on runs.run_id = metric_values.run_id
    left join internal.overload on overload.run_id = metric_values.run_id
)

select *, obstacle is null as is_valid from join_runs;

comment on view main.metric_value is 'One row per run that has ended × metric × statistic × detail: every number that was measured, with its interval, and the run that it is of. Stored when a run ends.';
comment on column main.metric_value.obstacle is 'Why a latency, throughput or goodput is not the engine''s: its client sent late, read late or both. NULL if nothing is known against the value.';
comment on column main.metric_value.is_valid is 'Whether obstacle is NULL.';

-- Grain: one row per run.
-- columns of: raw.runs, internal.run_conditions, internal.run_summary, internal.gate_verdict
create or replace view main.run as
with

take_values as (
    select
        run_id,
        max(value) filter (metric = 'accuracy') as accuracy,
        max(low) filter (metric = 'accuracy') as accuracy_low,
        max(high) filter (metric = 'accuracy') as accuracy_high,
        max(value) filter (metric = 'requests_per_s') as requests_per_s,
        max(value) filter (metric = 'output_tokens_per_s') as output_tokens_per_s,
        max(value) filter (metric = 'ttft_p50_s') as ttft_p50_s,
        max(value) filter (metric = 'ttft_p95_s') as ttft_p95_s,
        max(value) filter (metric = 'tpot_p50_s') as tpot_p50_s,
        max(value) filter (metric = 'tpot_p95_s') as tpot_p95_s,
        max(value) filter (metric = 'e2e_p50_s') as e2e_p50_s,
        max(value) filter (metric = 'e2e_p95_s') as e2e_p95_s,
        max(value) filter (metric = 'cost_per_right_answer') as cost_per_right_answer
    from internal.run_metric
    group by run_id
),

take_totals as (
    select
        run_id,
        cast(max(value) filter (metric = 'ok_requests') as bigint) as ok_requests,
        cast(max(value) filter (metric = 'error_requests') as bigint) as error_requests,
        cast(max(value) filter (metric = 'missing_requests') as bigint) as missing_requests,
        cast(max(value) filter (metric = 'output_tokens') as bigint) as output_tokens,
        max(value) filter (metric = 'load_s') as load_s,
        max(value) filter (metric = 'duration_s') as duration_s,
        max(value) filter (metric = 'downtime_s') as downtime_s,
        max(value) filter (metric = 'recovery_s') as recovery_s,
        max(value) filter (metric = 'cost') as cost,
        max(unit) filter (metric = 'cost') as currency
    from raw.metric_values
    where statistic = 'total' and detail is null
    group by run_id
),

find_scorers as (
    select run_id, arg_min(scorer, (ordinal, scorer)) as scorer
    from raw.scorers
    group by run_id
),

add_judges as (
    select
        judge_run.run_id,
        count(*) as judge_runs,
        sum(duration_s) as judging_s,
        cast(sum(output_tokens) as bigint) as judging_output_tokens,
        case when count(cost) = count(*) and count(distinct currency) = 1 then sum(cost) end as judging_cost
    from internal.judge_run
    left join take_totals on take_totals.run_id = judge_run.judge_run_id
    group by judge_run.run_id
),

find_baselines as (
    select run_id, list(baseline order by baseline) as baselines
    from raw.baselines
    group by run_id
),

join_runs as (
    select
        runs.run_id,
        runs.name,
        runs.model,
        runs.prompt_set,
        runs.benchmark_id,
        runs.purpose,
        runs.state,
        runs.spec_json ->> '$.prompts.source.tool' as tool,
        runs.spec_json ->> '$.prompts.source.version' as tool_version,
        runs.message,
        runs.started_at,
        runs.finished_at,
        runs.attempt as attempts,
        runs.expected_requests,
        take_totals.* exclude (run_id, currency),
        find_scorers.scorer,
        take_values.* exclude (run_id),
        coalesce(add_judges.judge_runs, 0) as judge_runs,
        add_judges.judging_s,
        add_judges.judging_output_tokens,
        add_judges.judging_cost,
        gate_verdict.verdict,
        gate_verdict.baseline_run_id,
        gate_verdict.failed_limits,
        gate_verdict.inconclusive_limits,
        find_baselines.baselines,
        runs.host_name,
        runs.machine,
        run_conditions.device_name,
        run_conditions.driver_version,
        run_conditions.vllm_version,
        run_conditions.torch_version,
        run_conditions.served_root,
        runs.assayline_version,
        runs.config_id,
        runs.model_id,
        runs.tokenizer_id,
        runs.template_id,
        runs.sampling_id,
        run_conditions.prompts_digest,
        run_conditions.obstacle,
        runs.spec_json
    from raw.runs
    left join take_totals on take_totals.run_id = runs.run_id
    left join take_values on take_values.run_id = runs.run_id
    left join find_scorers on find_scorers.run_id = runs.run_id
    left join add_judges on add_judges.run_id = runs.run_id
    left join find_baselines on find_baselines.run_id = runs.run_id
    left join internal.gate_verdict on gate_verdict.run_id = runs.run_id
    left join internal.run_conditions on run_conditions.run_id = runs.run_id
)

select * from join_runs;

comment on view main.run is 'One row per run: model, prompt set, state, most important metrics, the gate''s verdict and the conditions. metric_value has all metrics. A run that has not ended has no metrics yet.';
comment on column main.run.tool is 'Tool whose file was imported. NULL for a run of assayline.';
comment on column main.run.tool_version is 'Its version. NULL if the file lacks it.';
comment on column main.run.ttft_p50_s is 'Median time to first token (TTFT), seconds. Like the other metrics here a row of metric_value.';
comment on column main.run.ttft_p95_s is '95th percentile of TTFT, seconds.';
comment on column main.run.tpot_p50_s is 'Median time per output token after the first (TPOT), seconds.';
comment on column main.run.tpot_p95_s is '95th percentile of TPOT, seconds.';
comment on column main.run.e2e_p50_s is 'Median end-to-end latency (E2E), seconds.';
comment on column main.run.e2e_p95_s is '95th percentile of E2E, seconds.';
comment on column main.run.cost_per_right_answer is 'Cost per right answer, in the currency of the spec''s price. NULL without a price or without scores of 0 and 1.';
comment on column main.run.baselines is 'Names under which the run is pinned as a baseline. NULL if it is not.';
comment on column main.run.cost is 'Cost of the whole run, including loading and downtime, in the currency of the spec''s price. NULL without a price. It leaves out judges, which are runs of their own.';
comment on column main.run.judge_runs is 'Number of runs that judge its answers and have ended. A judge of pairs counts for both judged runs, also in the next columns.';
comment on column main.run.judging_s is 'Time of judging: sum of duration_s of these runs. NULL without judges.';
comment on column main.run.judging_output_tokens is 'Tokens that the judges wrote: sum of output_tokens of these runs.';
comment on column main.run.judging_cost is 'Cost of judging: sum of cost of these runs. NULL if one of them has no price, or two have different currencies.';

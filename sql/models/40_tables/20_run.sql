-- Grain: one row per run.
-- columns of: raw.runs
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
)

select
    runs.run_id,
    runs.name,
    runs.model,
    runs.prompt_set,
    runs.benchmark_id,
    runs.purpose,
    runs.state,
    runs.tags,
    runs.note,
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
    runs.job,
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
left join internal.run_conditions on run_conditions.run_id = runs.run_id;

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
comment on column main.run.attempts is 'How often the run was started: 1, unless it was resumed.';
comment on column main.run.ok_requests is 'Requests with a result.';
comment on column main.run.error_requests is 'Requests with an error, those that could not be rendered included.';
comment on column main.run.missing_requests is 'Requests without an answer (yet): expected_requests − answered_requests − unsent_requests, not below 0.';
comment on column main.run.output_tokens is 'Output tokens of ok requests.';
comment on column main.run.load_s is 'Cold start, seconds: the longest start-up of a worker''s first engine, in the first attempt in which one started.';
comment on column main.run.duration_s is 'The whole window, seconds: from the first beginning to the last end of any engine''s work. NULL if no engine''s work has both ends.';
comment on column main.run.downtime_s is 'Seconds of the window with no engine at work: every engine was being rebuilt, or the run was between two attempts. 0 if some engine always worked.';
comment on column main.run.recovery_s is 'Seconds that workers were without an engine, from the end of one to the readiness of the next in the same attempt, summed over workers. NULL if none was rebuilt.';
comment on column main.run.scorer is 'The run''s first scorer, which accuracy is of. NULL if it has none.';
comment on column main.run.accuracy is 'Their mean score, 0 to 1; errors are 0. NULL if nothing was scored.';
comment on column main.run.accuracy_low is 'Lower end of its 95% interval.';
comment on column main.run.accuracy_high is 'Upper end.';
comment on column main.run.requests_per_s is 'Throughput: ok requests that finished per second with an engine at work, or between a load''s warm-up and cool-down windows.';
comment on column main.run.output_tokens_per_s is 'Output tokens of the same requests over the same seconds: a request counts as a whole when it finishes.';
comment on column main.run.verdict is 'fail if a limit fails, else suspect or inconclusive if one is, else pass.';
comment on column main.run.baseline_run_id is 'Baseline run of the comparison.';
comment on column main.run.failed_limits is 'Metrics of the failed limits, in the gate''s order; empty if none failed.';
comment on column main.run.inconclusive_limits is 'Metrics of the inconclusive limits: the data neither show that the run is worse nor that it is within them.';
comment on column main.run.device_name is 'Devices as its engines report them; several names are comma-separated. NULL if no engine opened.';
comment on column main.run.driver_version is 'Version of the GPU''s driver. NULL without a GPU.';
comment on column main.run.vllm_version is 'Version of vLLM. NULL if no engine reported it.';
comment on column main.run.torch_version is 'Version of torch. NULL if no engine reported it.';
comment on column main.run.served_root is 'Files behind a running server''s name for the model, as the server names them. NULL if no server named any.';
comment on column main.run.prompts_digest is 'Digest of the prompt rows, in no order; see measured_runs. NULL while the run has not ended.';
comment on column main.run.obstacle is 'Why its speed does not count among the repeats of its configuration: not completed, resumed after an earlier attempt had opened an engine, perhaps on another device or version, an engine failed, a worker without a request, not warmed up, a client that sent or read late. NULL if it counts.';

-- Grain: one row per run.
create or replace view run_summary as
with

count_requests as (
    select
        run_id,
        count(*) as prepared_requests,
        count(*) filter (status = 'ok') as ok_requests,
        count(*) filter (status = 'error') as error_requests,
        count(*) filter (context_limited) as context_limited_requests,
        count(distinct prompt_id) as prompts,
        count(distinct worker) filter (worker <> 'prepare') as workers,
        sum(prompt_tokens) filter (status = 'ok') as prompt_tokens,
        sum(output_tokens) filter (status = 'ok') as output_tokens,
        sum(cached_tokens) filter (status = 'ok') as cached_tokens,
        sum(prompt_tokens) filter (status = 'ok' and cached_tokens is not null) as cacheable_tokens,
        sum(preemptions) filter (status = 'ok') as preemptions,
        max(finished_at_s) filter (status = 'ok') - min(arrived_at_s) filter (status = 'ok') as duration_s,
        max(send_lag_s) as max_send_lag_s
    from stg_requests
    group by run_id
),

time_engines as (
    select
        run_id,
        max(duration_s) filter (event = 'opened' and engine_generation = 0) as load_s,
        max(duration_s) filter (event = 'warmed_up' and engine_generation = 0) as warmup_s,
        sum(duration_s) filter (event in ('opened', 'warmed_up') and engine_generation > 0) as rebuild_s,
        count(*) filter (event = 'failed') as engine_failures
    from engine_events
    group by run_id
),

average_concurrency as (
    select
        run_id,
        sum(in_flight_requests * stretch_s) / sum(stretch_s) as mean_in_flight_requests,
        max(in_flight_requests) as max_in_flight_requests,
        coalesce(sum(stretch_s) filter (in_flight_requests = 0), 0) as idle_s
    from concurrency
    group by run_id
),

add_batches as (
    select
        run_id,
        sum(engine_steps) as engine_steps,
        sum(output_tokens) / nullif(sum(engine_steps), 0) as output_tokens_per_step,
        sum(output_tokens) filter (window_requests is not null)
            / nullif(sum(engine_steps * window_requests), 0) as window_share
    from batch_efficiency
    group by run_id
),

join_runs as (
    select
        runs.run_id,
        runs.name,
        runs.model,
        runs.prompt_set,
        runs.state,
        runs.attempt,
        runs.started_at,
        runs.finished_at,
        coalesce(runs.expected_requests, count_requests.prepared_requests, 0) as expected_requests,
        coalesce(count_requests.ok_requests, 0) + coalesce(count_requests.error_requests, 0) as answered_requests,
        coalesce(count_requests.ok_requests, 0) as ok_requests,
        coalesce(count_requests.error_requests, 0) as error_requests,
        coalesce(count_requests.context_limited_requests, 0) as context_limited_requests,
        coalesce(count_requests.prompts, 0) as prompts,
        count_requests.prompt_tokens,
        count_requests.cached_tokens,
        count_requests.cacheable_tokens,
        count_requests.output_tokens,
        count_requests.preemptions,
        count_requests.duration_s,
        count_requests.max_send_lag_s,
        coalesce(count_requests.workers, 0) as workers,
        coalesce(time_engines.engine_failures, 0) as engine_failures,
        time_engines.load_s,
        time_engines.warmup_s,
        time_engines.rebuild_s,
        average_concurrency.idle_s,
        average_concurrency.mean_in_flight_requests,
        average_concurrency.max_in_flight_requests,
        add_batches.engine_steps,
        add_batches.output_tokens_per_step,
        add_batches.window_share,
        accuracy.requests as target_requests,
        accuracy.mean as accuracy,
        accuracy.standard_error as accuracy_standard_error,
        accuracy.wilson_low as accuracy_low,
        accuracy.wilson_high as accuracy_high
    from runs
    left join count_requests on count_requests.run_id = runs.run_id
    left join time_engines on time_engines.run_id = runs.run_id
    left join average_concurrency on average_concurrency.run_id = runs.run_id
    left join add_batches on add_batches.run_id = runs.run_id
    left join accuracy on accuracy.run_id = runs.run_id
),

summarize_runs as (
    select
        run_id,
        name,
        model,
        prompt_set,
        state,
        attempt,
        started_at,
        finished_at,
        expected_requests,
        answered_requests,
        ok_requests,
        error_requests,
        greatest(0, expected_requests - answered_requests) as missing_requests,
        error_requests / nullif(answered_requests, 0) as error_share,
        context_limited_requests,
        prompts,
        target_requests,
        accuracy,
        accuracy_standard_error,
        accuracy_low,
        accuracy_high,
        cast(prompt_tokens as bigint) as prompt_tokens,
        cast(cached_tokens as bigint) as cached_tokens,
        cast(output_tokens as bigint) as output_tokens,
        output_tokens / nullif(ok_requests, 0) as mean_output_tokens,
        cached_tokens / nullif(cacheable_tokens, 0) as prefix_cache_hit_rate,
        cast(preemptions as bigint) as preemptions,
        load_s,
        warmup_s,
        duration_s,
        idle_s,
        rebuild_s,
        ok_requests / nullif(duration_s, 0) as requests_per_s,
        output_tokens / nullif(duration_s, 0) as output_tokens_per_s,
        (prompt_tokens + output_tokens) / nullif(duration_s, 0) as total_tokens_per_s,
        mean_in_flight_requests,
        max_in_flight_requests,
        max_send_lag_s,
        workers,
        engine_failures,
        cast(engine_steps as bigint) as engine_steps,
        output_tokens_per_step,
        window_share
    from join_runs
)

select * from summarize_runs;

comment on view run_summary is 'One row per run: what a person reads first. Tokens, window and throughput are those of ok requests; load and warm-up are outside the window.';
comment on column run_summary.run_id is 'The run.';
comment on column run_summary.name is 'The spec''s name.';
comment on column run_summary.model is 'The model as the spec names it: hub id or folder.';
comment on column run_summary.prompt_set is 'Name of the prompt set.';
comment on column run_summary.state is 'running, completed, failed or cancelled.';
comment on column run_summary.attempt is 'How often the run was started, 1 for the first time.';
comment on column run_summary.started_at is 'UTC wall clock at the start of the run.';
comment on column run_summary.finished_at is 'UTC wall clock at the end of the run.';
comment on column run_summary.expected_requests is 'Requests that the run must answer: prompt rows × repeats; the prepared ones while that is not known.';
comment on column run_summary.answered_requests is 'Requests with a result or an error: ok_requests + error_requests.';
comment on column run_summary.ok_requests is 'Requests with a result.';
comment on column run_summary.error_requests is 'Requests with an error, those that could not be rendered included.';
comment on column run_summary.missing_requests is 'Requests without an answer (yet): expected_requests − answered_requests, not below 0.';
comment on column run_summary.error_share is 'error_requests / answered_requests, 0 to 1. NULL where nothing was answered.';
comment on column run_summary.context_limited_requests is 'Results that the context cut off, not max_tokens; see stg_requests.context_limited.';
comment on column run_summary.prompts is 'Different prompts (prompt_id) among the requests.';
comment on column run_summary.target_requests is 'Requests whose prompt has a target: the n of accuracy.';
comment on column run_summary.accuracy is 'Share of them that match exactly, 0 to 1; errors and missing answers are wrong. NULL without targets.';
comment on column run_summary.accuracy_standard_error is 'Standard error of accuracy, clustered by prompt; see accuracy.standard_error.';
comment on column run_summary.accuracy_low is 'Lower end of the 95 % interval of accuracy; see accuracy.wilson_low.';
comment on column run_summary.accuracy_high is 'Upper end of the 95 % interval of accuracy; see accuracy.wilson_high.';
comment on column run_summary.prompt_tokens is 'Prompt tokens of ok requests. NULL where none is known, as the other token sums.';
comment on column run_summary.cached_tokens is 'Prompt tokens of ok requests that came from the prefix cache.';
comment on column run_summary.output_tokens is 'Output tokens of ok requests.';
comment on column run_summary.mean_output_tokens is 'output_tokens / ok_requests.';
comment on column run_summary.prefix_cache_hit_rate is 'Sum of cached_tokens / sum of prompt_tokens, 0 to 1, over ok requests whose cached_tokens are known.';
comment on column run_summary.preemptions is 'Preemptions of ok requests. NULL where the engine does not say.';
comment on column run_summary.load_s is 'Longest start-up of a worker''s first engine, seconds.';
comment on column run_summary.warmup_s is 'Longest warm-up of a worker''s first engine, seconds.';
comment on column run_summary.duration_s is 'Generation window, seconds: max(finished_at_s) − min(arrived_at_s) of ok requests. NULL where none has both stamps.';
comment on column run_summary.idle_s is 'Seconds between the first arrival and the last end with nothing in flight: an engine being rebuilt, a pause between attempts or between arrivals.';
comment on column run_summary.rebuild_s is 'Seconds that workers spent starting and warming later engines, summed over workers. Lies inside the window. NULL where none was rebuilt.';
comment on column run_summary.requests_per_s is 'Ok requests per second: ok_requests / duration_s.';
comment on column run_summary.output_tokens_per_s is 'Output tokens per second: output_tokens / duration_s.';
comment on column run_summary.total_tokens_per_s is 'Prompt and output tokens per second: (prompt_tokens + output_tokens) / duration_s.';
comment on column run_summary.mean_in_flight_requests is 'Requests in flight averaged over time: sum of in-flight × seconds / seconds, from the first arrival to the last end of the sweep in concurrency.';
comment on column run_summary.max_in_flight_requests is 'The most requests in flight at once.';
comment on column run_summary.max_send_lag_s is 'Latest sending against the arrival pattern, seconds: max(sent_at_s − due_at_s). NULL without a pattern.';
comment on column run_summary.workers is 'Workers that answered.';
comment on column run_summary.engine_failures is 'Times an engine died.';
comment on column run_summary.engine_steps is 'Engine steps of all engines, warm-up left out. NULL without telemetry.';
comment on column run_summary.output_tokens_per_step is 'Mean output tokens per engine step over all engines: sum of output tokens / sum of engine_steps of batch_efficiency.';
comment on column run_summary.window_share is 'How much of the window an average step used: sum of output tokens / sum of (engine_steps × window_requests) of batch_efficiency.';

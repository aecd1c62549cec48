-- Grain: one row per run.
create or replace view internal.run_summary as
with

count_requests as (
    select
        run_id,
        count(*) as prepared_requests,
        count(*) filter (status = 'ok') as ok_requests,
        count(*) filter (status = 'error') as error_requests,
        count(*) filter (status = 'unsent') as unsent_requests,
        count(*) filter (phase = 'measured') as measured_requests,
        count(*) filter (retries > 0) as retried_requests,
        count(*) filter (context_limited) as context_limited_requests,
        count(*) filter (truncated) as truncated_requests,
        truncated_requests / nullif(count(truncated), 0) as truncated_share,
        count(distinct prompt_id) as prompts,
        count(distinct (prompt_id, occurrence)) filter (status = 'error' and worker = 'prepare') as unasked_rows,
        count(distinct worker) filter (status in ('ok', 'error') and worker <> 'prepare') as workers,
        sum(prompt_tokens) filter (status = 'ok') as prompt_tokens,
        sum(output_tokens) filter (status = 'ok') as output_tokens,
        sum(cached_tokens) filter (status = 'ok') as cached_tokens,
        sum(prompt_tokens) filter (status = 'ok' and cached_tokens is not null) as cacheable_tokens,
        sum(preemptions) filter (status = 'ok') as preemptions,
        max(send_lag_s) as max_send_lag_s,
        count(*) filter (phase = 'measured' and status = 'ok') as measured_ok_requests,
        count(*) filter (is_finished) as finished_requests,
        sum(prompt_tokens) filter (is_finished) as finished_prompt_tokens,
        sum(output_tokens) filter (is_finished) as finished_output_tokens
    from stg_requests
    group by run_id
),

add_stretches as (
    select run_id, true as has_windows, sum(stretch_s) as stretch_s
    from load_stretch
    where has_windows
    group by run_id
),

span_answers as (
    select
        *,
        least(work_began_at_s, first_arrived_at_s) as attempts_began_at_s,
        greatest(work_ended_at_s, last_finished_at_s) as attempts_ended_at_s
    from engine_history
),

-- gap_s: seconds before this engine's work in which no engine worked, as every earlier work had ended.
-- attempted_s: seconds of this engine's answers, errors included, after the end of every earlier engine's.
find_gaps as (
    select
        *,
        max(work_ended_at_s) over (
            partition by run_id
            order by work_began_at_s
            rows between unbounded preceding and 1 preceding
        ) as earlier_ended_at_s,
        greatest(0, work_began_at_s - earlier_ended_at_s) as gap_s,
        attempts_ended_at_s - greatest(attempts_began_at_s, max(attempts_ended_at_s) over (
            partition by run_id
            order by attempts_began_at_s
            rows between unbounded preceding and 1 preceding
        )) as attempted_s,
        case when ok_requests + error_requests > 0 then last_window_requests end as answered_window_requests
    from span_answers
),

-- If an engine's steps or its window are not known, its tokens do not count towards occupancy.
add_attempts as (
    select
        run_id,
        attempt,
        min(work_began_at_s) as work_began_at_s,
        max(work_ended_at_s) as work_ended_at_s,
        sum(gap_s) as gap_s,
        sum(greatest(0, attempted_s)) as attempted_s,
        max(load_s) filter (not is_rebuild) as load_s,
        max(warmup_s) filter (not is_rebuild) as warmup_s,
        max(load_s + coalesce(warmup_s, 0)) filter (not is_rebuild) as start_s,
        count(*) filter (is_rebuild) as rebuilds,
        sum(rebuild_s) as rebuild_s,
        sum(recovery_s) as recovery_s,
        sum(reductions) as reductions,
        sum(isolated_requests) as isolated_requests,
        count(*) filter (ending = 'failed') as engine_failures,
        count(*) filter (ending = 'vanished') as vanished_engines,
        sum(lost_s) as lost_s,
        sum(engine_steps) as engine_steps,
        sum(output_tokens) filter (engine_steps is not null) as step_tokens,
        sum(output_tokens) filter (engine_steps * answered_window_requests is not null) as window_tokens,
        sum(engine_steps * answered_window_requests) as window_steps
    from find_gaps
    group by run_id, attempt
),

order_attempts as (
    select
        *,
        row_number() over (partition by run_id order by coalesce(load_s, warmup_s) is null, attempt) as start_order
    from add_attempts
),

add_engines as (
    select
        run_id,
        max(load_s) filter (start_order = 1) as load_s,
        max(warmup_s) filter (start_order = 1) as warmup_s,
        sum(start_s) filter (start_order > 1) as resume_load_s,
        max(work_ended_at_s) - min(work_began_at_s) as duration_s,
        sum(gap_s) as gap_s,
        sum(attempted_s) as attempted_s,
        sum(rebuilds) as rebuilds,
        sum(rebuild_s) as rebuild_s,
        sum(recovery_s) as recovery_s,
        sum(reductions) as reductions,
        sum(isolated_requests) as isolated_requests,
        sum(engine_failures) as engine_failures,
        sum(vanished_engines) as vanished_engines,
        sum(lost_s) as lost_s,
        sum(engine_steps) as engine_steps,
        sum(step_tokens) / nullif(sum(engine_steps), 0) as output_tokens_per_step,
        sum(window_tokens) / nullif(sum(window_steps), 0) as window_share
    from order_attempts
    group by run_id
),

-- The seconds that throughput is divided by: of a load with windows what lies between them, else the union of all
-- engines' work, in pieces that do not overlap.
list_measured as (
    select run_id, begins_at_s, ends_at_s
    from load_stretch
    where has_windows
    union all
    select run_id, greatest(work_began_at_s, earlier_ended_at_s), work_ended_at_s
    from find_gaps
    where run_id not in (select run_id from add_stretches)
),

add_in_flight as (
    select
        run_id,
        sum(in_flight_requests * overlap_s) as in_flight_request_s,
        coalesce(sum(overlap_s) filter (in_flight_requests > 0), 0) as in_flight_s
    from (
        select
            concurrency.run_id,
            in_flight_requests,
            least(until_s, ends_at_s) - greatest(at_s, begins_at_s) as overlap_s
        from concurrency
        join list_measured on list_measured.run_id = concurrency.run_id
        where overlap_s > 0
    )
    group by run_id
),

find_most_in_flight as (
    select run_id, max(in_flight_requests) as max_in_flight_requests
    from concurrency
    group by run_id
),

take_first_scorer as (
    select
        run_id,
        scorer,
        samples as scored_samples,
        score_sum,
        mean as accuracy,
        standard_error as accuracy_standard_error,
        mean_low as accuracy_low,
        mean_high as accuracy_high
    from accuracy
    qualify row_number() over (partition by run_id order by ordinal) = 1
),

-- An imported run has requests, perhaps with times, and no engines of its own.
mark_own as (
    select *, state <> 'imported' as is_ours
    from raw.runs
),

join_runs as (
    select
        * replace (
            coalesce(expected_requests, prepared_requests, 0) as expected_requests,
            coalesce(ok_requests, 0) as ok_requests,
            coalesce(error_requests, 0) as error_requests,
            coalesce(unsent_requests, 0) as unsent_requests,
            coalesce(measured_requests, 0) as measured_requests,
            coalesce(finished_requests, 0) as finished_requests,
            case when is_ours then coalesce(retried_requests, 0) end as retried_requests,
            case when is_ours or truncated_share is not null then coalesce(context_limited_requests, 0) end
                as context_limited_requests,
            case when is_ours or truncated_share is not null then coalesce(truncated_requests, 0) end
                as truncated_requests,
            coalesce(prompts, 0) as prompts,
            coalesce(unasked_rows, 0) as unasked_rows,
            case when is_ours then coalesce(workers, 0) end as workers,
            case when is_ours then coalesce(engine_failures, 0) end as engine_failures,
            case when is_ours then coalesce(vanished_engines, 0) end as vanished_engines,
            case when is_ours then coalesce(rebuilds, 0) end as rebuilds,
            case when is_ours then coalesce(reductions, 0) end as reductions,
            case when is_ours then coalesce(isolated_requests, 0) end as isolated_requests,
            coalesce(scored_samples, 0) as scored_samples
        ),
        coalesce(ok_requests, 0) + coalesce(error_requests, 0) as answered_requests,
        case when is_ours and duration_s is not null then coalesce(gap_s, 0) end as downtime_s,
        duration_s - coalesce(gap_s, 0) as working_s,
        case when has_windows then stretch_s else working_s end as measured_s
    from mark_own
    left join count_requests using (run_id)
    left join add_stretches using (run_id)
    left join add_engines using (run_id)
    left join add_in_flight using (run_id)
    left join find_most_in_flight using (run_id)
    left join take_first_scorer using (run_id)
),

summarize_runs as (
    select
        run_id,
        name,
        model,
        prompt_set,
        state,
        attempt as attempts,
        started_at,
        finished_at,
        expected_requests,
        answered_requests,
        ok_requests,
        error_requests,
        unsent_requests,
        greatest(0, expected_requests - answered_requests - unsent_requests) as missing_requests,
        measured_requests,
        retried_requests,
        error_requests / nullif(answered_requests, 0) as error_share,
        context_limited_requests,
        truncated_requests,
        truncated_share,
        prompts,
        unasked_rows,
        scorer,
        scored_samples,
        score_sum,
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
        resume_load_s,
        duration_s,
        working_s,
        measured_s,
        attempted_s,
        downtime_s,
        case when in_flight_s is not null then greatest(0, measured_s - in_flight_s) end as idle_s,
        lost_s,
        rebuild_s,
        recovery_s,
        case
            when finished_requests > 0 or coalesce(measured_ok_requests, 0) = 0
            then finished_requests / nullif(measured_s, 0)
        end as requests_per_s,
        finished_output_tokens / nullif(measured_s, 0) as output_tokens_per_s,
        (finished_prompt_tokens + finished_output_tokens) / nullif(measured_s, 0) as total_tokens_per_s,
        ok_requests / nullif(attempted_s, 0) as ok_requests_per_attempted_s,
        output_tokens / nullif(attempted_s, 0) as output_tokens_per_attempted_s,
        (prompt_tokens + output_tokens) / nullif(attempted_s, 0) as total_tokens_per_attempted_s,
        in_flight_request_s / nullif(measured_s, 0) as mean_in_flight_requests,
        max_in_flight_requests,
        max_send_lag_s,
        workers,
        cast(engine_failures as bigint) as engine_failures,
        cast(vanished_engines as bigint) as vanished_engines,
        cast(rebuilds as bigint) as rebuilds,
        cast(reductions as bigint) as reductions,
        cast(isolated_requests as bigint) as isolated_requests,
        cast(engine_steps as bigint) as engine_steps,
        output_tokens_per_step,
        window_share
    from join_runs
)

select * from summarize_runs;

comment on view internal.run_summary is 'One row per run: its key figures. Counts, tokens and accuracy include all requests. Throughput is what finished per second in which an engine was at work, or between the load''s warm-up and cool-down windows if it has any. See engine_history for how each engine ended.';
comment on column internal.run_summary.run_id is 'The run.';
comment on column internal.run_summary.name is 'The spec''s name.';
comment on column internal.run_summary.model is 'The model as the spec names it: hub id or folder; or a running server''s name for it, if that is another one.';
comment on column internal.run_summary.prompt_set is 'Name of the prompt set.';
comment on column internal.run_summary.state is 'running, completed, failed, cancelled, interrupted or imported.';
comment on column internal.run_summary.attempts is 'How often the run was started: 1, unless it was resumed.';
comment on column internal.run_summary.started_at is 'UTC wall clock at the start of the run.';
comment on column internal.run_summary.finished_at is 'UTC wall clock at the end of the run.';
comment on column internal.run_summary.expected_requests is 'Requests that the run must answer: prompt rows × repeats; the prepared ones while that is not known.';
comment on column internal.run_summary.answered_requests is 'Requests with a result or an error: ok_requests + error_requests.';
comment on column internal.run_summary.ok_requests is 'Requests with a result.';
comment on column internal.run_summary.error_requests is 'Requests with an error, those that could not be rendered included.';
comment on column internal.run_summary.unsent_requests is 'Requests that were never sent, as the load ended before their turn: no error, and nothing to ask again.';
comment on column internal.run_summary.missing_requests is 'Requests without an answer (yet): expected_requests − answered_requests − unsent_requests, not below 0.';
comment on column internal.run_summary.measured_requests is 'Results and errors that metrics are about: sent outside of the load''s warm-up and cool-down windows (stg_requests.phase). Without windows all that reached an engine.';
comment on column internal.run_summary.retried_requests is 'Requests that a server was asked for more than once before it answered; their latencies contain the wait.';
comment on column internal.run_summary.error_share is 'error_requests / answered_requests, 0 to 1. NULL if nothing was answered.';
comment on column internal.run_summary.context_limited_requests is 'Results that the context cut off, not max_tokens; see stg_requests.context_limited.';
comment on column internal.run_summary.truncated_requests is 'Results that max_tokens cut off; see stg_requests.truncated.';
comment on column internal.run_summary.truncated_share is 'truncated_requests / results with a finish_reason, 0 to 1. NULL if there are none, as for likelihoods.';
comment on column internal.run_summary.prompts is 'Different prompts (prompt_id) among the requests.';
comment on column internal.run_summary.unasked_rows is 'Prompt rows that could not be asked: they cannot be read or rendered, or are too long. Their requests are errors that no engine has seen, and score 0 if they have a target.';
comment on column internal.run_summary.scorer is 'The run''s first scorer, which accuracy is of; NULL if nothing was scored. The others are in the view accuracy.';
comment on column internal.run_summary.scored_samples is 'Samples (prompt row × repeat) that it scored: the n of accuracy.';
comment on column internal.run_summary.score_sum is 'Sum of these scores. NULL without a scorer that scored.';
comment on column internal.run_summary.accuracy is 'Their mean score, 0 to 1; errors are 0. NULL if nothing was scored.';
comment on column internal.run_summary.accuracy_standard_error is 'Standard error of accuracy, clustered by prompt; see accuracy.standard_error.';
comment on column internal.run_summary.accuracy_low is 'Lower end of the 95% interval of accuracy; see accuracy.mean_low.';
comment on column internal.run_summary.accuracy_high is 'Upper end of the 95% interval of accuracy; see accuracy.mean_high.';
comment on column internal.run_summary.prompt_tokens is 'Prompt tokens of ok requests. NULL if none is known, as the other token sums.';
comment on column internal.run_summary.cached_tokens is 'Prompt tokens of ok requests that came from the prefix cache.';
comment on column internal.run_summary.output_tokens is 'Output tokens of ok requests.';
comment on column internal.run_summary.mean_output_tokens is 'output_tokens / ok_requests.';
comment on column internal.run_summary.prefix_cache_hit_rate is 'Sum of cached_tokens / sum of prompt_tokens, 0 to 1, over ok requests whose cached_tokens are known.';
comment on column internal.run_summary.preemptions is 'Preemptions of ok requests. NULL if the engine does not report it.';
comment on column internal.run_summary.load_s is 'Cold start, seconds: the longest start-up of a worker''s first engine, in the first attempt in which one started. A rebuild''s start-up is in rebuild_s.';
comment on column internal.run_summary.warmup_s is 'Longest warm-up of a worker''s first engine in that attempt, seconds.';
comment on column internal.run_summary.resume_load_s is 'Start-up time of later attempts, in seconds: the longest start-up and warm-up of a worker''s first engine in each, added up. NULL if no later attempt started an engine.';
comment on column internal.run_summary.duration_s is 'The whole window, seconds: from the first beginning to the last end of any engine''s work (engine_history.work_began_at_s and work_ended_at_s). For engines that did not fail: max(finished_at_s) − min(arrived_at_s) of ok requests. NULL if no engine''s work has both ends.';
comment on column internal.run_summary.working_s is 'Seconds of the window with at least one engine at work, from the first arrival at the engine to the end of its work: the union of those stretches, duration_s − downtime_s.';
comment on column internal.run_summary.measured_s is 'Denominator of throughput and goodput, in seconds: working_s, or for a load with warm-up or cool-down windows the time between them, the sum of load_stretch.stretch_s over engines. NULL if they leave nothing.';
comment on column internal.run_summary.attempted_s is 'Seconds in which an engine worked or a request failed: from the first arrival at an engine to the last end of a result or an error, the union over engines, without pauses in which there was no engine, and without regard to a load''s windows. Longer than working_s if the last answers are errors, such as timeouts.';
comment on column internal.run_summary.downtime_s is 'Seconds of the window with no engine at work: every engine was being rebuilt, or the run was between two attempts. 0 if some engine always worked.';
comment on column internal.run_summary.idle_s is 'Seconds of measured_s with nothing in flight that was answered: pauses between arrivals, and work that a crashed engine lost.';
comment on column internal.run_summary.lost_s is 'Seconds of work that failed and vanished engines threw away, summed over engines; inside working_s. See engine_history.lost_s. NULL if no engine failed or vanished at work.';
comment on column internal.run_summary.rebuild_s is 'Seconds of start-up and warm-up of rebuilt engines, summed over workers: later engines of a worker in the same attempt. Lies inside the window. NULL if none was rebuilt.';
comment on column internal.run_summary.recovery_s is 'Seconds that workers were without an engine, from the end of one to the readiness of the next in the same attempt, summed over workers. Contains rebuild_s. NULL if none was rebuilt; see engine_history.recovery_s.';
comment on column internal.run_summary.requests_per_s is 'Ok requests per second: ok_requests / working_s. With windows, the ok requests that finished between them, from begins_at_s to ends_at_s of load_stretch, whenever they were sent / measured_s. NULL if all measured results finished after the interval: answers that take longer than the sending have no throughput in it.';
comment on column internal.run_summary.output_tokens_per_s is 'Output tokens per second, those of the same requests over the same seconds: a request counts as a whole when it finishes.';
comment on column internal.run_summary.total_tokens_per_s is 'Prompt and output tokens per second, likewise.';
comment on column internal.run_summary.ok_requests_per_attempted_s is 'Throughput that counts the time that errors take: ok_requests / attempted_s. It is request_throughput of vllm bench serve.';
comment on column internal.run_summary.output_tokens_per_attempted_s is 'output_tokens / attempted_s: output_throughput of vllm bench serve.';
comment on column internal.run_summary.total_tokens_per_attempted_s is '(prompt_tokens + output_tokens) / attempted_s: total_token_throughput of vllm bench serve.';
comment on column internal.run_summary.mean_in_flight_requests is 'Requests in flight averaged over measured_s: sum of in-flight × seconds / measured_s, from the sweep in concurrency, without downtime and outside of a load''s windows. Without errors and windows it is requests_per_s × mean e2e_s (Little''s law). A request that a crashed engine lost counts from its arrival at the engine that answered it.';
comment on column internal.run_summary.max_in_flight_requests is 'The most requests in flight at once.';
comment on column internal.run_summary.max_send_lag_s is 'Latest sending against the arrival pattern, seconds: max(sent_at_s − due_at_s). NULL without a pattern. More in send_lag.';
comment on column internal.run_summary.workers is 'Workers that answered.';
comment on column internal.run_summary.engine_failures is 'Engines that crashed or did not start.';
comment on column internal.run_summary.vanished_engines is 'Engines killed together with their worker, so that their end has no event.';
comment on column internal.run_summary.rebuilds is 'Engines beyond the first of each attempt and worker.';
comment on column internal.run_summary.reductions is 'Times that the next engine got less of something than the one that died.';
comment on column internal.run_summary.isolated_requests is 'Requests that became error rows because they kill engines.';
comment on column internal.run_summary.engine_steps is 'Engine steps of all engines, warm-up left out, lost work included. NULL without telemetry.';
comment on column internal.run_summary.output_tokens_per_step is 'Mean output tokens per engine step over all engines whose steps are known: sum of output tokens / sum of engine_steps.';
comment on column internal.run_summary.window_share is 'How much of the window an average step used: sum of output tokens / sum of (engine_steps × last_window_requests). NULL in an open loop, which has no window.';

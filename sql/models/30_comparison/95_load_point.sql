-- Grain: one row per benchmark × run of it that has a load.
--
-- The knee is where power, throughput / latency, is highest: L. Kleinrock 1979, "Power and deterministic rules of thumb
-- for probabilistic problems in computer communications". Before it, more load buys throughput at little cost in
-- latency; beyond it, the other way round. One run may be lucky, so a configuration's median over its repeats counts,
-- and all of its repeats are the knee. A run whose generator fell behind did not have the load that it is filed under,
-- and the latency of a saturated run depends on its duration. So does that of a run that answered less than 90% of its
-- load, and fewer than 50 requests cannot show which it is.
create or replace view main.load_point as
with

take_values as (
    select
        run_id,
        max(value) filter (metric = 'offered_requests_per_s') as offered_requests_per_s,
        max(value) filter (metric = 'requests_per_s') as requests_per_s,
        max(value) filter (metric = 'output_tokens_per_s') as output_tokens_per_s,
        max(value) filter (metric = 'ttft_s' and statistic = 'p50') as ttft_p50_s,
        max(value) filter (metric = 'ttft_s' and statistic = 'p95') as ttft_p95_s,
        max(value) filter (metric = 'ttft_s' and statistic = 'p99') as ttft_p99_s,
        max(value) filter (metric = 'tpot_s' and statistic = 'p50') as tpot_p50_s,
        max(value) filter (metric = 'itl_s' and statistic = 'p99') as itl_p99_s,
        max(value) filter (metric = 'e2e_s' and statistic = 'p50') as e2e_p50_s,
        max(value) filter (metric = 'in_flight_requests' and statistic = 'mean') as mean_in_flight_requests,
        max(value) filter (metric = 'send_lag_s' and statistic = 'p99') as send_lag_p99_s,
        max(value) filter (metric = 'kept_up') = 1 as kept_up,
        max(value) filter (metric = 'is_saturated') = 1 as is_saturated
    from raw.metric_values
    group by run_id
),

join_runs as (
    select
        runs.benchmark_id,
        runs.run_id,
        runs.config_id,
        loads.arrival,
        coalesce(loads.requests_per_s, take_values.offered_requests_per_s) as offered_requests_per_s,
        loads.concurrency,
        take_values.* exclude (run_id, offered_requests_per_s),
        take_values.requests_per_s / nullif(take_values.e2e_p50_s, 0) as power,
        case
            when runs.state <> 'completed' then 'it is ' || runs.state
            when power is null then 'no latency'
            when overload.run_id is not null then overload.obstacle
            when take_values.is_saturated then 'saturated'
            when loads.arrival = 'all_at_once' then 'all at once'
            when loads.arrival <> 'concurrency' and take_values.is_saturated is null then 'fewer than 50 requests'
            when loads.arrival <> 'concurrency' and take_values.requests_per_s < 0.9 * offered_requests_per_s
            then printf('answered %.0f%% of its load', 100 * take_values.requests_per_s / offered_requests_per_s)
        end as knee_obstacle
    from raw.runs
    join raw.loads on loads.run_id = runs.run_id
    left join take_values on take_values.run_id = runs.run_id
    left join internal.overload on overload.run_id = runs.run_id
    where runs.benchmark_id is not null
),

rank_configurations as (
    select
        benchmark_id,
        config_id,
        rank() over (partition by benchmark_id order by median(power) desc) = 1 as is_knee
    from join_runs
    where knee_obstacle is null
    group by benchmark_id, config_id
)

select
    join_runs.*,
    knee_obstacle is null and coalesce(rank_configurations.is_knee, false) as is_knee
from join_runs
left join rank_configurations
    on rank_configurations.benchmark_id = join_runs.benchmark_id
    and rank_configurations.config_id = join_runs.config_id;

comment on view main.load_point is 'One row per benchmark × run of it that has a load: a point of latency against throughput. Join goodput by run_id for goodput against rate.';
comment on column main.load_point.config_id is 'Its configuration; see runs.config_id. Runs with the same one are repeats of a point.';
comment on column main.load_point.arrival is 'The arrival pattern, as in loads.';
comment on column main.load_point.offered_requests_per_s is 'Requests per second that were to be sent: from the load, or saturation.offered_requests_per_s of a trace. NULL for concurrency and all_at_once.';
comment on column main.load_point.concurrency is 'Requests to keep in flight. NULL for all arrivals except concurrency.';
comment on column main.load_point.requests_per_s is 'Throughput, as in metric_values.';
comment on column main.load_point.output_tokens_per_s is 'Throughput in output tokens, as in metric_values.';
comment on column main.load_point.ttft_p50_s is 'Median time to first token, seconds; as in metric_values, like the next five. NULL if not measured.';
comment on column main.load_point.ttft_p95_s is 'Its 95th percentile, seconds.';
comment on column main.load_point.ttft_p99_s is 'Its 99th percentile, seconds.';
comment on column main.load_point.tpot_p50_s is 'Median time per output token after the first, seconds.';
comment on column main.load_point.itl_p99_s is '99th percentile of the gaps between tokens, seconds.';
comment on column main.load_point.e2e_p50_s is 'Median end-to-end latency, seconds.';
comment on column main.load_point.mean_in_flight_requests is 'Requests in flight averaged over time, as in metric_values.';
comment on column main.load_point.send_lag_p99_s is '99th percentile of send_lag_s, seconds. NULL for a closed loop.';
comment on column main.load_point.kept_up is 'Whether the generator kept up with its schedule, as in metric_values. NULL if it had none.';
comment on column main.load_point.is_saturated is 'Whether requests in flight piled up beyond chance, as in metric_values. NULL if it is unknown.';
comment on column main.load_point.power is 'Throughput / latency, requests/s²: requests_per_s / e2e_p50_s. NULL if either is NULL.';
comment on column main.load_point.knee_obstacle is 'Why the run cannot be the knee: not completed, no latency, a client that sent or read late, saturated, all requests at once, fewer than 50 requests (is_saturated is NULL), or less than 90% of the offered load answered. NULL if it can.';
comment on column main.load_point.is_knee is 'Whether the run is at the knee of its benchmark: a run without a knee_obstacle, of the configuration with the highest median power over such runs.';

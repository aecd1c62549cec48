-- Grain: one row per run.
-- Three windows. The whole: from the start of the first engine to the end of the last, in each attempt. At work:
-- run_summary.working_s. Measured: measured_s, which throughput is of, with the requests that throughput counts; a
-- token costs the same in all of them. A rate that is given and whose quantity is not known makes the cost NULL: a part
-- would look like the whole.
create or replace view internal.run_cost as
with

read_prices as (
    select
        run_id,
        spec_json ->> '$.price.currency' as currency,
        try_cast(spec_json ->> '$.price.per_gpu_hour' as double) as gpu_hour_rate,
        try_cast(spec_json ->> '$.price.per_machine_hour' as double) as machine_hour_rate,
        try_cast(spec_json ->> '$.price.per_kwh' as double) as kwh_rate,
        try_cast(spec_json ->> '$.price.per_million_input_tokens' as double) as input_rate,
        try_cast(spec_json ->> '$.price.per_million_cached_tokens' as double) as cached_rate,
        try_cast(spec_json ->> '$.price.per_million_output_tokens' as double) as output_rate,
        try_cast(spec_json ->> '$.price.gpus' as bigint) as paid_gpus,
        coalesce(try_cast(spec_json ->> '$.price.machines' as bigint), 1) as machines
    from raw.runs
),

-- The last sign of a worker that was killed is a sample of its engine.
find_last_samples as (
    select run_id, worker, engine_generation, max(at_s) as at_s
    from raw.telemetry
    group by run_id, worker, engine_generation
),

span_attempts as (
    select
        engine_events.run_id,
        attempt,
        min(engine_events.at_s - case when event = 'opened' then coalesce(duration_s, 0) else 0 end) as began_at_s,
        max(greatest(engine_events.at_s, find_last_samples.at_s)) as ended_at_s
    from raw.engine_events
    left join find_last_samples
        on find_last_samples.run_id = engine_events.run_id
        and find_last_samples.worker = engine_events.worker
        and find_last_samples.engine_generation = engine_events.engine_generation
    where event not in ('load_ended', 'idle')
    group by engine_events.run_id, attempt
),

add_attempts as (
    select run_id, sum(ended_at_s - began_at_s) as held_s from span_attempts group by run_id
),

-- A worker's number of GPUs never changes.
count_gpus as (
    select run_id, cast(nullif(sum(gpus), 0) as bigint) as gpus
    from (
        select
            run_id,
            worker,
            max(coalesce(
                try_cast(details_json ->> '$.claimed_gpus' as bigint),
                case
                    when details_json ->> '$.device' = 'cuda'
                        then coalesce(try_cast(details_json ->> '$.tensor_parallel_size' as bigint), 1)
                end
            )) as gpus
        from raw.engine_events
        where event = 'opened'
        group by run_id, worker
    )
    group by run_id
),

-- A sample: all requests of a prompt row and repeat, options and turns included. Its weight is its share of the cost:
-- what its tokens cost, if tokens alone are paid for, otherwise its output tokens, as they take the time.
weigh_samples as (
    select
        stg_requests.run_id,
        prompt_id,
        occurrence,
        repeat_index,
        count(*) filter (status = 'ok') as ok_requests,
        sum(case
            when status <> 'ok' then 0
            when coalesce(gpu_hour_rate, machine_hour_rate, kwh_rate) is not null then output_tokens
            else coalesce(input_rate, 0) * (prompt_tokens - coalesce(cached_tokens, 0))
                + coalesce(cached_rate, input_rate, 0) * coalesce(cached_tokens, 0)
                + coalesce(output_rate, 0) * output_tokens
        end) as weight,
        count(*) filter (status = 'ok' and output_tokens is null) as unknown_requests
    from stg_requests
    join read_prices on read_prices.run_id = stg_requests.run_id
    where currency is not null
    group by stg_requests.run_id, prompt_id, occurrence, repeat_index
),

score_samples as (
    select weigh_samples.*, scores.value
    from weigh_samples
    join (
        select run_id, arg_min(scorer, ordinal) as scorer from raw.scorers group by run_id
    ) as first_scorer on first_scorer.run_id = weigh_samples.run_id
    left join raw.scores
        on scores.run_id = weigh_samples.run_id
        and scores.scorer = first_scorer.scorer
        and scores.prompt_id = weigh_samples.prompt_id
        and scores.occurrence = weigh_samples.occurrence
        and scores.repeat_index = weigh_samples.repeat_index
),

add_clusters as (
    select
        run_id,
        coalesce(prompt_cluster.cluster, prompt_id) as cluster,
        sum(weight) as all_weight,
        sum(weight) filter (value is not null) as weight,
        sum(value) as value,
        sum(unknown_requests) as unknown_requests,
        count(value) as samples,
        coalesce(sum(ok_requests) filter (value is null), 0) as unscored_requests
    from score_samples
    left join internal.prompt_cluster using (run_id, prompt_id, occurrence)
    group by run_id, coalesce(prompt_cluster.cluster, prompt_id)
),

share_clusters as (
    select
        *,
        weight / nullif(sum(weight) over (partition by run_id), 0) as weight_share,
        value / nullif(sum(value) over (partition by run_id), 0) as value_share,
        sum(samples) over (partition by run_id) as all_samples
    from add_clusters
),

-- Var(ln(C / A)) of a ratio of sums over clusters, by the delta method: Cochran 1977, "Sampling Techniques", chapter 6,
-- with a cluster's deviation over 1 − its share of the samples (CR3), as in accuracy.
spread_costs as (
    select
        run_id,
        case
            when sum(unscored_requests) = 0 then 1
            when sum(unknown_requests) = 0 then sum(weight) / nullif(sum(all_weight), 0)
        end as scored_share,
        count(value) as clusters,
        least(
            sum(samples) ** 2 / nullif(sum(samples ** 2), 0) - 1, sum(samples ** 2) ** 2 / nullif(sum(samples ** 4), 0)
        ) as freedom,
        case
            when sum(unknown_requests) = 0 and clusters > 1
            then sqrt(
                sum(((weight_share - value_share) / (1 - samples / all_samples)) ** 2) * (clusters - 1) / clusters
            )
        end as log_error,
        case
            when log_error > 1e-9 then exp(internal.t_quantile(freedom) * log_error)
        end as interval_factor
    from share_clusters
    group by run_id
),

join_runs as (
    select
        read_prices.*,
        scored_share,
        interval_factor,
        coalesce(paid_gpus, count_gpus.gpus) as gpus,
        held_s,
        run_summary.* exclude (run_id),
        requests_per_s * measured_s as finished_requests,
        output_tokens_per_s * measured_s as finished_output_tokens,
        run_energy.* exclude (run_id, gpus)
    from read_prices
    left join add_attempts on add_attempts.run_id = read_prices.run_id
    left join count_gpus on count_gpus.run_id = read_prices.run_id
    left join run_summary on run_summary.run_id = read_prices.run_id
    left join run_energy on run_energy.run_id = read_prices.run_id
    left join spread_costs on spread_costs.run_id = read_prices.run_id
),

-- A rate that is not given costs nothing; one that is given costs NULL if its quantity is NULL.
price_parts as (
    select
        *,
        case when gpu_hour_rate is null then 0 else gpu_hour_rate * gpus / 3600 end as gpu_second_cost,
        case when machine_hour_rate is null then 0 else machine_hour_rate * machines / 3600 end as machine_second_cost,
        case when input_rate is null then 0 else (
            input_rate * (prompt_tokens - coalesce(cached_tokens, 0))
            + coalesce(cached_rate, input_rate) * coalesce(cached_tokens, 0)
        ) / 1e6 end as prompt_cost,
        case when output_rate is null then 0 else output_rate * output_tokens / 1e6 end as output_cost
    from join_runs
),

add_costs as (
    select
        *,
        gpu_second_cost * held_s as gpu_cost,
        machine_second_cost * held_s as machine_cost,
        case when kwh_rate is null then 0 else kwh_rate * energy_joules / 3.6e6 end as energy_cost,
        prompt_cost + output_cost as token_cost,
        case when currency is not null then gpu_cost + machine_cost + energy_cost + token_cost end as cost,
        case
            when currency is not null
                then (gpu_second_cost + machine_second_cost) * working_s
                    + case when kwh_rate is null then 0 else kwh_rate * working_joules / 3.6e6 end + token_cost
        end as working_cost,
        case
            when currency is not null
                then (gpu_second_cost + machine_second_cost) * measured_s
                    + case when kwh_rate is null then 0 else kwh_rate * measured_joules / 3.6e6 end
        end as measured_time_cost,
        score_sum as right_answers
    from price_parts
),

divide_costs as (
    select
        run_id,
        currency,
        gpus,
        case when machine_hour_rate is not null then machines end as machines,
        held_s,
        case when gpu_hour_rate is not null then gpu_cost end as gpu_cost,
        case when machine_hour_rate is not null then machine_cost end as machine_cost,
        case when kwh_rate is not null then energy_cost end as energy_cost,
        case when coalesce(input_rate, output_rate) is not null then token_cost end as token_cost,
        cost,
        working_cost,
        (measured_time_cost / nullif(finished_output_tokens, 0) + token_cost / nullif(output_tokens, 0)) * 1e6
            as cost_per_million_output_tokens,
        cost / nullif(output_tokens, 0) * 1e6 as full_cost_per_million_output_tokens,
        (measured_time_cost / nullif(finished_requests, 0) + token_cost / nullif(ok_requests, 0)) * 1e3
            as cost_per_thousand_requests,
        cost / nullif(ok_requests, 0) * 1e3 as full_cost_per_thousand_requests,
        right_answers,
        working_cost * scored_share / nullif(right_answers, 0) as cost_per_right_answer,
        cost_per_right_answer / interval_factor as cost_per_right_answer_low,
        cost_per_right_answer * interval_factor as cost_per_right_answer_high,
        cost * scored_share / nullif(right_answers, 0) as full_cost_per_right_answer,
        full_cost_per_right_answer / interval_factor as full_cost_per_right_answer_low,
        full_cost_per_right_answer * interval_factor as full_cost_per_right_answer_high,
        measured_joules / nullif(measured_s, 0) as mean_power_watts,
        measured_joules / nullif(finished_output_tokens, 0) as energy_per_output_token_joules,
        measured_joules / nullif(finished_requests, 0) as energy_per_request_joules,
        finished_output_tokens / nullif(measured_joules, 0) as output_tokens_per_joule,
        requests_per_s,
        output_tokens_per_s,
        total_tokens_per_s,
        accuracy
    from add_costs
)

select * from divide_costs;

comment on view internal.run_cost is 'One row per run: cost by the price in its spec, energy per unit of output, speed and accuracy. Names with full_ count loading, warm-up, downtime and closing; the others count only work. Costs are sums over all given rates, and NULL if one of them has no quantity, such as GPU-hours of a run without a GPU.';
comment on column internal.run_cost.run_id is 'The run.';
comment on column internal.run_cost.currency is 'Code of the currency, as the price says. NULL for a run without a price, as all costs.';
comment on column internal.run_cost.gpus is 'GPUs that are paid for: as the price says, else those that the engines held. NULL if they held none.';
comment on column internal.run_cost.machines is 'Machines that are paid for, as the price says. NULL if it has no rate for them.';
comment on column internal.run_cost.held_s is 'Seconds that are paid for: from the start of the first engine''s start-up to the last sign of an engine, its closing or a sample, in each attempt, added up. The time between two attempts is not counted.';
comment on column internal.run_cost.gpu_cost is 'per_gpu_hour × gpus × held_s / 3600. NULL without that rate, as the next three without theirs.';
comment on column internal.run_cost.machine_cost is 'per_machine_hour × machines × held_s / 3600.';
comment on column internal.run_cost.energy_cost is 'per_kwh × run_energy.energy_joules / 3.6e6.';
comment on column internal.run_cost.token_cost is '(per_million_input_tokens × (prompt tokens − cached tokens) + per_million_cached_tokens × cached tokens + per_million_output_tokens × output tokens) / 10⁶, of ok requests. Cached tokens cost as others if they have no rate, and count as none if the engine does not report them.';
comment on column internal.run_cost.cost is 'The whole run: gpu_cost + machine_cost + energy_cost + token_cost.';
comment on column internal.run_cost.working_cost is 'Without loading and downtime: the same rates over run_summary.working_s and run_energy.working_joules, and all tokens.';
comment on column internal.run_cost.cost_per_million_output_tokens is '(rates per second × run_summary.measured_s + per_kwh × run_energy.measured_joules) / output tokens that throughput counts × 10⁶, which is the rates per second / output_tokens_per_s; and token_cost / output_tokens × 10⁶.';
comment on column internal.run_cost.full_cost_per_million_output_tokens is 'cost / output tokens of ok requests × 10⁶.';
comment on column internal.run_cost.cost_per_thousand_requests is 'The same per requests that throughput counts, × 1000.';
comment on column internal.run_cost.full_cost_per_thousand_requests is 'cost / ok requests × 1000.';
comment on column internal.run_cost.right_answers is 'Sum of the first scorer''s scores: run_summary.score_sum. A half-right answer counts half. NULL if nothing was scored.';
comment on column internal.run_cost.cost_per_right_answer is 'Cost of the scored samples / right_answers: working_cost × their share of the cost of all ok requests, which is that of output tokens, or of the price of tokens if nothing else is paid for. NULL if none is right, or if some requests are not scored and tokens are not known.';
comment on column internal.run_cost.cost_per_right_answer_low is 'Lower end of its 95% interval for other prompts at the speed of this run; runs differ by more. A ratio of two sums over clusters, of which both vary: cost_per_right_answer / exp(t × e), with e² = (G − 1) / G × Σ over clusters of ((share of the cost − share of right_answers) / (1 − share of the samples))², the delta method for the logarithm of a ratio estimator (Cochran 1977, Sampling Techniques, chapter 6), t with G* − 1 degrees of freedom, G* effective clusters (see accuracy), or (Σ n²)² / Σ n⁴ if that is less: those of a variance to which each cluster of n samples adds n² (Satterthwaite 1946), as similar prompts do. A cluster is a value of prompts.columns.cluster, or a prompt without one. NULL for fewer than two clusters, and if both are distributed equally over clusters, for example if all answers are right: the method sees no variance then.';
comment on column internal.run_cost.cost_per_right_answer_high is 'Upper end: cost_per_right_answer × exp(t × e).';
comment on column internal.run_cost.full_cost_per_right_answer is 'The same with cost for working_cost.';
comment on column internal.run_cost.full_cost_per_right_answer_low is 'Lower end of its 95% interval, by the same factor.';
comment on column internal.run_cost.full_cost_per_right_answer_high is 'Upper end, by the same factor.';
comment on column internal.run_cost.mean_power_watts is 'Mean power of all GPUs together in the window that throughput is of, watts: run_energy.measured_joules / run_summary.measured_s.';
comment on column internal.run_cost.energy_per_output_token_joules is 'Joules per output token: run_energy.measured_joules / output tokens that throughput counts (output_tokens_per_s × measured_s). Prompt tokens took energy too, and are not divided by.';
comment on column internal.run_cost.energy_per_request_joules is 'Joules per request: run_energy.measured_joules / requests that throughput counts.';
comment on column internal.run_cost.output_tokens_per_joule is 'Output tokens per joule, which is output tokens per second per watt: the inverse of energy_per_output_token_joules.';
comment on column internal.run_cost.requests_per_s is 'Throughput, as in run_summary, like the next three.';
comment on column internal.run_cost.output_tokens_per_s is 'Throughput in output tokens.';
comment on column internal.run_cost.total_tokens_per_s is 'Throughput in prompt and output tokens.';
comment on column internal.run_cost.accuracy is 'Mean score of the first scorer, 0 to 1.';

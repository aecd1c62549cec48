-- Cost by the spec's price: of the whole run, from the start of the first engine to the last sign of one in each
-- attempt (full_), and of its work. A rate that is not given costs nothing; one whose quantity is unknown makes the cost
-- NULL, as a part would look like the whole. Grain: one row per metric.
with prices as (
    select
        price ->> '$.currency' as currency,
        try_cast(price ->> '$.per_gpu_hour' as double) as gpu_hour,
        try_cast(price ->> '$.per_machine_hour' as double) as machine_hour,
        try_cast(price ->> '$.per_kwh' as double) as kwh,
        try_cast(price ->> '$.per_million_input_tokens' as double) as input,
        try_cast(price ->> '$.per_million_cached_tokens' as double) as cached,
        try_cast(price ->> '$.per_million_output_tokens' as double) as output,
        try_cast(price ->> '$.gpus' as bigint) as paid_gpus
    from (select spec_json -> '$.price' as price from raw.runs where run_id = getvariable('run_id'))
),

-- The last sign of a worker that was killed is a sample of its engine.
attempts as (
    select
        min(at_s - case when event = 'opened' then coalesce(duration_s, 0) else 0 end) as from_s,
        greatest(max(at_s), max(last_sample_at_s)) as until_s
    from raw.engine_events
    left join (
        select worker, engine_generation, max(at_s) as last_sample_at_s
        from raw.telemetry
        where run_id = getvariable('run_id')
        group by worker, engine_generation
    ) using (worker, engine_generation)
    where run_id = getvariable('run_id') and event not in ('load_ended', 'idle')
    group by attempt
),

claims as (
    select max(coalesce(
        try_cast(details_json ->> '$.claimed_gpus' as bigint),
        case when details_json ->> '$.device' = 'cuda'
            then coalesce(try_cast(details_json ->> '$.tensor_parallel_size' as bigint), 1) end
    )) as gpus
    from raw.engine_events
    where run_id = getvariable('run_id') and event = 'opened'
    group by worker
),

found as (
    select
        max(value) filter (metric = 'measured_s') as measured_s,
        max(value) filter (metric = 'working_s') as working_s,
        max(value) filter (metric = 'requests_per_s') * measured_s as finished,
        max(value) filter (metric = 'output_tokens_per_s') * measured_s as finished_tokens,
        max(value) filter (metric = 'ok_requests') as ok,
        max(value) filter (metric = 'prompt_tokens') as prompt_tokens,
        coalesce(max(value) filter (metric = 'cached_tokens'), 0) as cached_tokens,
        max(value) filter (metric = 'output_tokens') as output_tokens,
        max(value) filter (metric = 'energy_joules') as energy_joules,
        max(value) filter (metric = 'working_joules') as working_joules,
        max(value) filter (metric = 'mean_power_watts') * measured_s as measured_joules
    from metric_value
    where run_id = getvariable('run_id')
),

rates as (
    select
        *,
        case when gpu_hour is null then 0 else gpu_hour * coalesce(paid_gpus, claimed_gpus) / 3600 end
            + coalesce(machine_hour, 0) / 3600 as second_cost,
        case when kwh is null then 0 else kwh / 3.6e6 end as joule_cost,
        (case when input is null then 0
            else input * (prompt_tokens - cached_tokens) + coalesce(cached, input) * cached_tokens end
            + case when output is null then 0 else output * output_tokens end) / 1e6 as token_cost
    from prices, found, (select sum(until_s - from_s) as held_s from attempts),
        (select nullif(sum(gpus), 0) as claimed_gpus from claims)
),

costs as (
    select
        *,
        second_cost * held_s + case when kwh is null then 0 else joule_cost * energy_joules end + token_cost as cost,
        second_cost * working_s + case when kwh is null then 0 else joule_cost * working_joules end + token_cost
            as working_cost,
        second_cost * measured_s + case when kwh is null then 0 else joule_cost * measured_joules end as measured_cost
    from rates
)

select unnest(metric_rows([
    ('cost', 'total', cost, null, currency, false),
    ('working_cost', 'total', working_cost, null, currency, false),
    ('token_cost', 'total', case when coalesce(input, output) is not null then token_cost end, null, currency, false),
    ('held_s', 'total', held_s, null, 's', false),
    ('cost_per_million_output_tokens', 'mean', (measured_cost / nullif(finished_tokens, 0)
        + token_cost / nullif(output_tokens, 0)) * 1e6, null, currency || '/million tokens', false),
    ('full_cost_per_million_output_tokens', 'mean', cost / nullif(output_tokens, 0) * 1e6, null,
        currency || '/million tokens', false),
    ('cost_per_thousand_requests', 'mean', (measured_cost / nullif(finished, 0) + token_cost / nullif(ok, 0)) * 1e3,
        null, currency || '/thousand requests', false),
    ('full_cost_per_thousand_requests', 'mean', cost / nullif(ok, 0) * 1e3, null, currency || '/thousand requests',
        false)
]), recursive := true)
from costs;

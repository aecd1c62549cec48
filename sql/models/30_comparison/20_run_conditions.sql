-- Grain: one row per run: under which conditions it ran, and what keeps it from being a repeat of its configuration.
create or replace view internal.run_conditions as
with

name_engines as (
    select
        *,
        concat_ws(
            ', ',
            details_json ->> '$.device_name',
            'vLLM ' || (details_json ->> '$.vllm_version'),
            'torch ' || (details_json ->> '$.torch_version'),
            'driver ' || (details_json ->> '$.driver_version'),
            'runner ' || (details_json ->> '$.model_runner')
                || case when (details_json ->> '$.has_flashinfer')::boolean then ' with FlashInfer' else '' end
                || case when (details_json ->> '$.is_compiled')::boolean then ' with torch.compile' else '' end,
            'context ' || (details_json ->> '$.max_model_len') || ' tokens',
            'files ' || (details_json ->> '$.served_root')
        ) as engine,
        min(attempt) filter (event = 'opened') over (partition by run_id) as first_attempt
    from raw.engine_events
),

read_engines as (
    select
        run_id,
        list_sort(list(distinct engine) filter (event = 'opened')) as engines,
        list(distinct engine) filter (event = 'opened' and attempt = first_attempt) as first_engines,
        string_agg(distinct details_json ->> '$.device_name', ', ' order by details_json ->> '$.device_name')
            as device_name,
        string_agg(distinct details_json ->> '$.driver_version', ', ' order by details_json ->> '$.driver_version')
            as driver_version,
        string_agg(distinct details_json ->> '$.vllm_version', ', ' order by details_json ->> '$.vllm_version')
            as vllm_version,
        string_agg(distinct details_json ->> '$.torch_version', ', ' order by details_json ->> '$.torch_version')
            as torch_version,
        string_agg(distinct details_json ->> '$.served_root', ', ' order by details_json ->> '$.served_root')
            as served_root,
        any_value(first_attempt) as first_attempt,
        count(distinct worker) filter (event = 'opened') as workers,
        string_agg(distinct worker, ', ' order by worker) filter (event = 'idle') as idle_workers,
        count(*) filter (event = 'warmed_up') as warm_ups,
        count(*) filter (event in ('failed', 'reduced', 'isolated')) as troubles
    from name_engines
    group by run_id
)

select
    runs.run_id,
    runs.config_id,
    runs.benchmark_id,
    runs.started_at,
    concat_ws(
        '; ',
        runs.machine,
        'assayline ' || runs.assayline_version,
        list_aggregate(read_engines.engines, 'string_agg', '; '),
        case when read_engines.workers > 1 then read_engines.workers || ' workers' end,
        'prompts ' || measured_runs.prompts_digest
    ) as place,
    coalesce(measured_runs.is_longest_first, false) as is_longest_first,
    concat_ws('; ', place, case when is_longest_first then 'longest answers first' end) as environment,
    case
        when runs.state = 'imported'
            then case when runs.machine is null then 'it is imported, and its machine is unknown' end
        when runs.state <> 'completed' then 'it is ' || runs.state || ', not completed'
        when runs.config_id is null then 'it has no config_id'
        when len(read_engines.engines) > len(read_engines.first_engines)
            then 'it was resumed on another device or version: '
                || array_to_string([
                    engine for engine in read_engines.engines
                    if not list_contains(read_engines.first_engines, engine)
                ], '; ')
        when coalesce(read_engines.first_attempt, 1) < runs.attempt then 'it was resumed'
        when read_engines.idle_workers is not null then read_engines.idle_workers || ' answered no request'
        when read_engines.troubles > 0 then 'an engine failed'
        when coalesce(read_engines.warm_ups, 0) = 0 then 'its engine was not warmed up'
    end as answers_obstacle,
    coalesce(answers_obstacle, overload.obstacle) as obstacle,
    read_engines.device_name,
    read_engines.driver_version,
    read_engines.vllm_version,
    read_engines.torch_version,
    read_engines.served_root,
    measured_runs.prompts_digest
from raw.runs
left join read_engines on read_engines.run_id = runs.run_id
left join raw.measured_runs on measured_runs.run_id = runs.run_id
left join internal.overload on overload.run_id = runs.run_id;

comment on view internal.run_conditions is 'One row per run: under which conditions it ran, and what keeps it from being a repeat of its configuration.';

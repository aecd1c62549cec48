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
),

judge_runs as (
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
    left join internal.overload on overload.run_id = runs.run_id
)

select * from judge_runs;

comment on view internal.run_conditions is 'One row per run: under which conditions it ran, and what keeps it from being a repeat of its configuration.';
comment on column internal.run_conditions.config_id is 'Digest of everything that determines answers and speed; see runs.config_id.';
comment on column internal.run_conditions.benchmark_id is 'The benchmark that the run is a part of, NULL for a standalone run.';
comment on column internal.run_conditions.started_at is 'UTC wall clock at the start of the run.';
comment on column internal.run_conditions.place is 'The environment without the order of the requests.';
comment on column internal.run_conditions.is_longest_first is 'Whether requests were ordered by expected lengths, which a first run does not know.';
comment on column internal.run_conditions.environment is 'Machine (runs.machine), version of assayline, what the engines reported (device, versions of vLLM, torch and driver, model runner and kernels, context length, files of a served model), their number if it is not 1, a digest of the prompt rows, whose file may change under the same spec, and whether requests were ordered by expected lengths. Speeds are repeats only if all of it is equal.';
comment on column internal.run_conditions.answers_obstacle is 'Why its answers do not count among the repeats: obstacle without a client that sent or read late, which moves no answer. NULL if they count.';
comment on column internal.run_conditions.obstacle is 'Why its speed does not count among the repeats of its configuration: not completed, resumed after an earlier attempt had opened an engine, perhaps on another device or version, an engine failed, a worker without a request, not warmed up, a client that sent or read late. NULL if it counts.';
comment on column internal.run_conditions.device_name is 'Devices as its engines report them; several names are comma-separated. NULL if no engine opened.';
comment on column internal.run_conditions.driver_version is 'Version of the GPU''s driver. NULL without a GPU.';
comment on column internal.run_conditions.vllm_version is 'Version of vLLM. NULL if no engine reported it.';
comment on column internal.run_conditions.torch_version is 'Version of torch. NULL if no engine reported it.';
comment on column internal.run_conditions.served_root is 'Files behind a running server''s name for the model, as the server names them. NULL if no server named any.';
comment on column internal.run_conditions.prompts_digest is 'Digest of the prompt rows, in no order; see measured_runs. NULL while the run has not ended.';

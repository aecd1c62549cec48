"""Runs that nobody ran, for measuring the database: plausible rows of every raw table, made by SQL in sets.

Fifty configurations take turns, so that each has its repeats. Requests keep `WINDOW` in flight; latencies differ by
configuration, run and request. Each run has a price and a GPU with an energy counter. One in four has error rows, one
in 25 an engine that died half-way, one in 50 the stamps of its tokens, one in 50 a picture per prompt; one in ten is a
point of a sweep, sent at a rate, with windows and an SLO. The same numbers make the same rows.
"""

from assayline.store.database import Connection, transaction

CONFIGURATIONS = 50
WINDOW = 64
RUNS_AT_ONCE = 20
"""Per transaction: what is sorted and kept at one time stays small."""

DICE = """
create or replace temp macro dice(run, request, throw) as
    (hash(hash(hash(run, request), throw)) >> 11)::double / (1::bigint << 53);
create or replace temp macro text_of(seed, words) as array_to_string(
    [['alder', 'birch', 'cedar', 'elm', 'fir', 'hazel', 'larch', 'maple'][(1 + hash(seed, word) % 8)::bigint]
    for word in range(words)], ' ');
"""

INVENT_RUNS = """
create or replace temp table invented_runs as
select
    printf('run-%06d', number) as run_id,
    number,
    number % {configurations} as configuration,
    number % 2 + 1 as repeats,
    number % 4 = 3 as has_errors,
    number % 25 = 24 as loses_engine,
    number % 50 = 7 as has_token_times,
    number % 50 = 8 as has_images,
    number % 10 = 4 as has_load,
    0.006 * (1 + 0.02 * (number % {configurations})) * (0.98 + 0.04 * dice(number, 0, 'noise')) as seconds_per_token,
    0.5 + 0.4 * (number % {configurations}) / {configurations} as skill
from range({first}, {last}) as numbers(number)
"""

INVENT_REQUESTS = """
create or replace temp table invented_requests as
with

number_requests as (
    select runs.*, request, request // repeats as prompt, request % repeats as repeat_index,
        16 + floor(96 * dice(number, request, 'length'))::integer as drawn_tokens
    from invented_runs as runs, range({requests}) as requests(request)
),

throw_dice as (
    select
        *,
        md5('prompt-' || prompt) as prompt_id,
        md5('prompt-' || prompt || '-' || repeat_index) as request_id,
        'tree ' || prompt % 997 as target,
        has_errors and dice(number, request, 'error') < 0.01 as is_error,
        dice(number, request, 'answer') < skill as is_right,
        if(loses_engine and request >= {requests} // 2, 1, 0) as engine_generation,
        20.0 + request * (64 * seconds_per_token + 0.09) / {window}
            + if(loses_engine and request >= {requests} // 2, 30.0, 0.0) as arrived_at_s,
        0.002 + 0.05 * dice(number, request, 'queue') as queue_s,
        0.01 + 0.04 * dice(number, request, 'prefill') as prefill_s
    from number_requests
)

select
    *,
    if(is_error, null, drawn_tokens) as output_tokens,
    if(is_error, null, arrived_at_s + queue_s + prefill_s) as first_token_at_s,
    if(is_error, null, arrived_at_s + queue_s + prefill_s + seconds_per_token * (drawn_tokens - 1)) as last_token_at_s
from throw_dice
"""

INSERTS = (
    """
    insert into runs by name
    select
        run_id, 'night-' || configuration as name, 'trees' as prompt_set, 'model-' || configuration % 5 as model,
        md5('model' || configuration % 5) as model_id, md5('tokenizer') as tokenizer_id, md5('chat') as template_id,
        md5('sampling' || configuration) as sampling_id, md5('spec' || configuration) as spec_hash,
        '{{"name": "night", "max_error_fraction": 0.5, "price": {{"currency": "USD", "per_gpu_hour": 2.5}}}}'
            as spec_json,
        md5('configuration' || configuration) as config_id, if(has_load, 'sweep', null) as benchmark_id,
        '0' as assayline_version, 'host' as host_name, 1 as attempt, 'completed' as state,
        timestamp '2026-01-01' + to_hours(number::integer) as started_at,
        timestamp '2026-01-01' + to_hours(number::integer) + interval 10 minute as finished_at,
        {requests} // repeats as prompt_rows, 0 as duplicate_prompts, {requests} as expected_requests
    from invented_runs
    """,
    """
    insert into loads by name
    select
        run_id, 'constant' as arrival, {window} / (64 * seconds_per_token + 0.09) as requests_per_s,
        0.01 as warmup_s, 0.01 as cooldown_s
    from invented_runs
    where has_load
    """,
    """
    insert into slos by name
    select run_id, 'interactive' as slo, unnest(['ttft_s', 'e2e_s']) as metric, unnest([0.05, 0.6]) as limit_s
    from invented_runs
    where has_load
    """,
    """
    insert into prompts by name
    select
        run_id, prompt_id, 0 as occurrence, prompt as source_row, prompt::varchar as source_id,
        '[{{"role": "user", "content": "' || text_of(prompt, 20) || '"}}]' as messages_json, target,
        '{{"topic": "' || prompt % 10 || '"}}' as metadata_json
    from invented_requests
    where repeat_index = 0
    """,
    """
    insert into requests by name
    select
        run_id, request_id, prompt_id, 0 as occurrence, repeat_index,
        [(hash(prompt, place) % 32000)::integer for place in range(24 + prompt % 16)] as prompt_token_ids,
        '{{"max_tokens": 128, "seed": ' || repeat_index || ', "temperature": 0.7}}' as sampling_json,
        '<user>' || text_of(prompt, 20) || '<answer>' as rendered,
        if(has_load, null, drawn_tokens + request % 7) as expected_output_tokens,
        if(has_load, 0, null) as turn_index, if(has_load, 1, null) as turns
    from invented_requests
    """,
    """
    insert into completions by name
    select
        run_id, request_id, 'worker-0' as worker, engine_generation, {window} as window_requests,
        if(has_load, arrived_at_s - 0.001 - 0.0005 * dice(number, request, 'lag'), null) as due_at_s,
        arrived_at_s - 0.001 as sent_at_s, arrived_at_s,
        if(is_error, null, arrived_at_s) as queued_at_s,
        if(is_error, null, arrived_at_s + queue_s) as scheduled_at_s,
        first_token_at_s, last_token_at_s,
        coalesce(last_token_at_s, arrived_at_s) + 0.002 as finished_at_s,
        24 + prompt % 16 as prompt_tokens, if(is_error, null, 16) as cached_tokens, output_tokens,
        if(is_error, null, 'stop') as finish_reason,
        if(is_error, null, if(is_right, target, text_of(request, 16))) as text,
        if(is_error, null, [(hash(request, place) % 32000)::integer for place in range(drawn_tokens)])
            as output_token_ids,
        if(has_token_times and not is_error, [
            first_token_at_s + seconds_per_token * place for place in range(drawn_tokens)
        ], null) as token_at_s,
        if(is_error, 'invalid_request', null) as error_kind, if(is_error, 'It was refused.', null) as error_message,
        if(has_images, 1, null) as images, if(has_images, 65536, null) as image_pixels,
        if(has_images, 20000 + prompt, null) as media_bytes, if(has_images and not is_error, 16, null) as media_tokens,
        if(has_images, 0.002 + 0.001 * dice(number, request, 'media'), null) as media_prepare_s
    from invented_requests
    """,
    """
    insert into scorers by name
    select
        run_id, 'exact_match' as scorer, 'exact_match' as kind, 0 as ordinal, '{{}}' as arguments_json,
        '0' as assayline_version, timestamp '2026-01-01' + to_hours(number::integer) as scored_at
    from invented_runs
    """,
    """
    insert into scores by name
    select
        run_id, 'exact_match' as scorer, prompt_id, 0 as occurrence, repeat_index,
        if(is_right and not is_error, 1.0, 0.0) as value, if(is_right and not is_error, target, null) as extracted,
        case when is_error then 'invalid_request' end as error_kind
    from invented_requests
    """,
    """
    insert into engine_events by name
    with

    span_engines as (
        select run_id, engine_generation, min(arrived_at_s) as began_at_s, max(arrived_at_s) + 1 as ended_at_s
        from invented_requests
        group by run_id, engine_generation
    ),

    list_events as (
        select *, 'opened' as event, began_at_s - 2 as at_s, 16.0 as duration_s,
            '{{"vllm_version": "0", "window_requests": {window}, "max_num_seqs": {window}, "claimed_gpus": 1}}'
                as details_json
        from span_engines
        union all
        select *, 'warmed_up', began_at_s - 1, 1.0, '{{}}' from span_engines
        union all
        select *, 'failed', ended_at_s, null, '{{"kind": "killed", "is_memory": false, "phase": "run"}}'
        from span_engines
        qualify engine_generation < max(engine_generation) over (partition by run_id)
        union all
        select *, 'closed', ended_at_s + 1, 0.5, '{{}}' from span_engines
    )

    select run_id, 'worker-0' as worker, 1 as attempt, engine_generation, event, at_s, duration_s, details_json
    from list_events
    """,
    """
    insert into telemetry by name
    select
        run_id, 'worker-0' as worker, engine_generation, floor(arrived_at_s) as at_s,
        ceil(sum(sum(drawn_tokens)) over seconds / {window})::bigint as engine_steps, {window} as in_flight_requests,
        (sum(sum(drawn_tokens)) over seconds)::bigint as output_tokens,
        0.1 + 0.8 * dice(any_value(number), floor(arrived_at_s)::bigint, 'cache') as kv_cache_usage_share,
        {window} as running_requests, 0 as waiting_requests, 0 as preemptions,
        [0.001 * dice(any_value(number), floor(arrived_at_s)::bigint, 'lag'), 0.0005] as loop_lags_s
    from invented_requests
    group by run_id, engine_generation, floor(arrived_at_s)
    window seconds as (partition by run_id, engine_generation order by floor(arrived_at_s))
    """,
    """
    insert into device_telemetry by name
    with

    list_seconds as (
        select run_id, number, unnest(range(0, ceil(max(arrived_at_s))::bigint + 10)) as second
        from invented_requests
        group by run_id, number
    )

    select
        run_id, 'worker-0' as worker, 'cuda-0' as device, second::double as at_s,
        dice(number, second, 'busy') as utilization_share, (60::bigint << 30) as memory_used_bytes,
        (80::bigint << 30) as memory_total_bytes, 300 + 100 * dice(number, second, 'power') as power_watts,
        350.0 * second as energy_joules, 60 as temperature_c, 1700 as sm_clock_mhz, 2600 as memory_clock_mhz,
        if(second % 10 = 0, 'sw_power_cap', '') as throttle_reasons
    from list_seconds
    """,
    """
    insert into loaded_parts by name
    select run_id, target_table || '/' || printf('%06d', part) as part, target_table, 512 as loaded_rows
    from invented_runs,
        (select unnest([
            'prompts', 'requests', 'completions', 'engine_events', 'telemetry', 'device_telemetry'
        ]) as target_table),
        range(greatest(1, {requests} // 512)) as parts(part)
    """,
)


def invent_runs(connection: Connection, runs: int, requests_per_run: int) -> None:
    """Adds `runs` runs of `requests_per_run` requests to an empty database."""
    connection.execute(DICE)
    for first in range(0, runs, RUNS_AT_ONCE):
        words = {
            "first": first,
            "last": min(runs, first + RUNS_AT_ONCE),
            "requests": requests_per_run,
            "configurations": CONFIGURATIONS,
            "window": WINDOW,
        }
        with transaction(connection):
            for statement in (INVENT_RUNS, INVENT_REQUESTS, *INSERTS):
                connection.execute(statement.format(**words))
    for table in ("invented_requests", "invented_runs"):
        connection.execute(f"drop table if exists temp.{table}")

-- Grain: one row per sample of an engine's counters, about one a second.
create table if not exists raw.telemetry (
    run_id varchar not null,
    worker varchar not null,
    engine_generation integer not null,
    at_s double not null,
    engine_steps bigint,
    in_flight_requests integer not null,
    output_tokens bigint not null,
    kv_cache_usage_share double,
    running_requests integer,
    waiting_requests integer,
    preemptions bigint,
    loop_lags_s double[]
);

comment on table raw.telemetry is 'One row per sample of an engine''s counters, about one a second while it generates.';
comment on column raw.telemetry.worker is 'The worker that owns the engine.';
comment on column raw.telemetry.engine_generation is 'Engines that this worker had started before this one, over all attempts of the run.';
comment on column raw.telemetry.at_s is 'When the sample was taken, in seconds since the run''s start.';
comment on column raw.telemetry.engine_steps is 'Engine steps so far that scheduled a token, counted from 0 per generation, warm-up left out. NULL for a server, which does not report it.';
comment on column raw.telemetry.in_flight_requests is 'Requests in the engine, waiting or running.';
comment on column raw.telemetry.output_tokens is 'Output tokens of finished requests so far, counted from 0 per generation.';
comment on column raw.telemetry.kv_cache_usage_share is 'Share of the KV cache''s blocks that were in use, 0 to 1, as vLLM''s kv_cache_usage_perc; of several engines behind one server the mean. NULL for an engine or a server that does not report it, like all columns below.';
comment on column raw.telemetry.running_requests is 'Requests that the scheduler was running: vLLM''s num_requests_running. A server counts everybody''s.';
comment on column raw.telemetry.waiting_requests is 'Requests that waited for their turn in the scheduler: vLLM''s num_requests_waiting. A server counts everybody''s.';
comment on column raw.telemetry.preemptions is 'Preemptions so far, counted from 0 per generation, warm-up left out: vLLM''s num_preemptions_total. A server counts everybody''s.';
comment on column raw.telemetry.loop_lags_s is 'Lags of the ticks of a 10 ms timer in the client''s event loop, since the previous sample, while requests were in flight. A loop that is blocked for 200 ms is late for twenty ticks. NULL for an engine that does not stream.';

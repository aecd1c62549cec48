-- Grain: one row per event in the life of an engine.
create table if not exists raw.engine_events (
    run_id varchar not null,
    worker varchar not null,
    attempt integer not null,
    engine_generation integer not null,
    event varchar not null,
    at_s double not null,
    duration_s double,
    message varchar,
    details_json varchar not null
);

comment on table raw.engine_events is 'One row per event in the life of an engine: opened, warmed_up, failed, reduced, isolated, restored, load_ended, closed, idle.';
comment on column raw.engine_events.worker is 'The worker that owns the engine.';
comment on column raw.engine_events.attempt is 'Which start of the run it belongs to, 1 for the first.';
comment on column raw.engine_events.engine_generation is 'Engines that this worker had started before this one, over all attempts. A change is filed under the engine whose death led to it.';
comment on column raw.engine_events.event is 'opened; warmed_up; failed: it crashed or did not start; reduced: arguments were reduced for the next engine; isolated: a request that kills engines became an error row; restored: reductions are undone, because that request was to blame or others gave memory back; load_ended: nothing more was sent, though there was more; closed; idle: the run ended without a request for this worker.';
comment on column raw.engine_events.at_s is 'When it was over, in seconds since the run''s start.';
comment on column raw.engine_events.duration_s is 'Duration of start-up, warm-up or closing, in seconds.';
comment on column raw.engine_events.message is 'Text of the event. NULL if it has none.';
comment on column raw.engine_events.details_json is 'Facts as a JSON object. opened: versions, device, resolved engine arguments, window_requests. failed: kind, is_memory, phase (start or run), exit_code, in_flight_requests. reduced and restored: one {from, to} per changed argument. isolated: request_id. load_ended: reason (max_requests, max_duration_s, max_errors or end_of_trace), sent_requests.';

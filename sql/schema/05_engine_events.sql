-- Grain: one row per event in the life of an engine.
create table if not exists engine_events (
    run_id varchar not null,
    worker varchar not null,
    engine_generation integer not null,
    event varchar not null,
    at_s double not null,
    duration_s double,
    message varchar,
    details_json varchar not null
);

comment on table engine_events is 'One row per event in the life of an engine: opened, warmed_up, failed, closed.';
comment on column engine_events.run_id is 'The run.';
comment on column engine_events.worker is 'The worker that owns the engine.';
comment on column engine_events.engine_generation is 'Engines that this worker had opened before this one.';
comment on column engine_events.event is 'opened, warmed_up, failed or closed.';
comment on column engine_events.at_s is 'When it was over, in seconds since the run''s start.';
comment on column engine_events.duration_s is 'How long it took: start-up, warm-up or closing.';
comment on column engine_events.message is 'In words, where there is something to say.';
comment on column engine_events.details_json is 'Facts as a JSON object: versions, device, resolved engine arguments.';

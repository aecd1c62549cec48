-- Grain: one row per run whose spec has a load.
create table if not exists raw.loads (
    run_id varchar not null,
    arrival varchar not null,
    requests_per_s double,
    concurrency integer,
    burstiness double,
    warmup_s double not null,
    cooldown_s double not null,
    max_requests bigint,
    max_duration_s double,
    max_errors bigint
);

comment on table raw.loads is 'One row per run whose spec has a load: when requests were to be sent.';
comment on column raw.loads.arrival is 'all_at_once, concurrency, constant, poisson or trace.';
comment on column raw.loads.requests_per_s is 'Requests per second that were to be sent; NULL for patterns without a rate.';
comment on column raw.loads.concurrency is 'Requests to keep in flight. NULL for all arrivals except concurrency, the only closed loop.';
comment on column raw.loads.burstiness is 'Shape of the gamma distribution of the gaps of arrival poisson, 1 for a Poisson process. NULL for all other arrivals.';
comment on column raw.loads.warmup_s is 'Warm-up period, in seconds: metrics leave out requests sent in the first seconds of an engine''s work.';
comment on column raw.loads.cooldown_s is 'Cool-down period, in seconds: metrics leave out requests sent in the last seconds of an engine''s sending.';
comment on column raw.loads.max_requests is 'Most requests to send; NULL: all.';
comment on column raw.loads.max_duration_s is 'Seconds after which nothing was sent; NULL: no such limit.';
comment on column raw.loads.max_errors is 'Error rows after which nothing was sent; NULL: no such limit.';

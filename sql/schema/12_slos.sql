-- Grain: one row per limit of a service level objective of a run.
create table if not exists raw.slos (
    run_id varchar not null,
    slo varchar not null,
    metric varchar not null,
    limit_s double not null
);

comment on table raw.slos is 'One row per limit of a service level objective (SLO) of a run. goodput counts the requests that are within all limits of one.';
comment on column raw.slos.metric is 'ttft_s, tpot_s or e2e_s of stg_requests.';
comment on column raw.slos.limit_s is 'Its longest value, seconds.';

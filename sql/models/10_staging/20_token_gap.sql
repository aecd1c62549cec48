-- Grain: one row per gap between two neighboring output tokens of an ok request, if timestamps were recorded.
create or replace view internal.token_gap as
with

pair_stamps as (
    select
        run_id,
        request_id,
        phase,
        unnest(token_at_s[:-2]) as before_at_s,
        unnest(token_at_s[2:]) as at_s
    from stg_requests
    where status = 'ok' and len(token_at_s) > 1
),

measure_gaps as (
    select
        run_id,
        request_id,
        phase,
        at_s,
        at_s - before_at_s as gap_s
    from pair_stamps
)

select * from measure_gaps;

comment on view internal.token_gap is 'One row per gap between two neighboring output tokens of an ok request. A request without recorded stamps, or with fewer than two, has no row.';
comment on column internal.token_gap.run_id is 'The run.';
comment on column internal.token_gap.request_id is 'The request.';
comment on column internal.token_gap.phase is 'As in stg_requests. ITL is of measured requests.';
comment on column internal.token_gap.at_s is 'When the token that ends the gap was made, in seconds since the run''s start.';
comment on column internal.token_gap.gap_s is 'This token''s stamp − the stamp before, seconds. 0 between tokens of one event, as speculative decoding makes them: such gaps are not ITL.';

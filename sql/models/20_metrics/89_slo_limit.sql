-- Grain: one row per run × service level objective (SLO) of its spec.
create or replace view internal.slo_limit as
select
    run_id,
    slo,
    max(limit_s) filter (metric = 'ttft_s') as ttft_limit_s,
    max(limit_s) filter (metric = 'tpot_s') as tpot_limit_s,
    max(limit_s) filter (metric = 'e2e_s') as e2e_limit_s
from raw.slos
group by run_id, slo;

comment on view internal.slo_limit is 'One row per run × service level objective (SLO) of its spec: its limits.';
comment on column internal.slo_limit.run_id is 'The run.';
comment on column internal.slo_limit.slo is 'Name of the objective.';
comment on column internal.slo_limit.ttft_limit_s is 'Longest good ttft_s, seconds. NULL if the SLO does not limit it, like the next two.';
comment on column internal.slo_limit.tpot_limit_s is 'Longest good tpot_s, seconds.';
comment on column internal.slo_limit.e2e_limit_s is 'Longest good e2e_s, seconds.';

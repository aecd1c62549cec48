-- Grain: one row per labelled sample of a run × rubric. A sample is a prompt row × a repeat.
-- columns of: raw.labels
create or replace view main.label as
with

keep_newest as (
    select *
    from raw.labels
    qualify row_number() over (
        partition by run_id, prompt_id, occurrence, repeat_index, rubric
        order by labelled_at desc
    ) = 1
),

leave_out_withdrawn as (
    select *
    from keep_newest
    where label is not null
)

select * from leave_out_withdrawn;

comment on view main.label is 'One row per sample (prompt row × repeat) of a run × rubric that a person labelled: the newest label. The audit of judges reads it.';

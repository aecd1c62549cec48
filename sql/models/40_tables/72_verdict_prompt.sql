-- Grain: one row per judgement of a run by the gate × limit × prompt that it names.
-- columns of: raw.verdicts, raw.prompts
create or replace view main.verdict_prompt as
with

read_prompts as (
    select
        run_id,
        baseline_run_id,
        judged_at,
        limit_on,
        unnest(
            from_json(
                prompts_json,
                '[{"prompt_id": "varchar", "occurrence": "integer", "finding": "varchar", '
                    || '"chance": "double", "scores": ["double"]}]'
            ),
            recursive := true
        )
    from raw.verdicts
    where prompts_json is not null
)

select
    read_prompts.*,
    gate_verdict.judged_at is not null as is_last
from read_prompts
left join internal.gate_verdict using (run_id, baseline_run_id, judged_at);

comment on view main.verdict_prompt is 'One row per judgement of a run by the gate × prompt that it names: those that are lost, and those that became flaky, with their scores on the nights before.';
comment on column main.verdict_prompt.finding is 'lost: wrong in this run, and there are more of its kind than the nights before predict; flaky: never wrong on ten nights or more, and in two to four of the last five.';
comment on column main.verdict_prompt.chance is 'Probability of a wrong answer in this run, by the nights before.';
comment on column main.verdict_prompt.scores is 'Mean score of the prompt on each comparable night, in their order, and in this run, the last. NULL if it has none.';
comment on column main.verdict_prompt.is_last is 'Whether it belongs to the judgement that counts, as in verdict.';

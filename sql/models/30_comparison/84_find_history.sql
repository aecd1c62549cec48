-- Grain: one row per run of a history: nights and evaluations of one spec's name, model and prompt set that have ended.
--
-- Runs of benchmarks and suites are left out (runs.purpose). If the spec has nights, so are evaluations of a
-- configuration that no night had, such as one with other sampling.
--
-- `history` is the name of a spec, or the id of a run: then name, model and prompt set are those of the newest run that
-- fits. It can be a config_id, too: then only that configuration's runs count.
--
-- run_id: the run.
-- started_at: UTC wall clock at the start of the run.
-- name: the spec's name.
-- model: the model as the spec names it.
-- prompt_set: name of the prompt set.
-- state: completed, failed, cancelled, interrupted or imported.
-- message: reason why it ended. NULL for a completed run.
-- config_id: digest of everything that determines answers and speed; see runs.config_id.
-- position: 1 for the first run, and so on, in the order of their start.
-- obstacle: why its speed does not count; see run_conditions.obstacle. NULL if it counts.
-- verdict: result of its nightly run's gate, else of the last gate; see gate_verdict. NULL if no gate judged it.
-- baseline_run_id: the gate's baseline run.
-- failed_limits: what the failed limits are on.
-- verdict_words: messages of the gate. NULL if no limit failed.
create or replace macro internal.find_history(history) as table
with

choose_line as (
    select
        name,
        model,
        prompt_set,
        case when config_id = history then config_id end as only_config_id
    from raw.runs
    where benchmark_id is null and purpose <> 'suite' and state <> 'running' and history in (name, run_id, config_id)
    order by started_at desc, run_id desc
    limit 1
),

list_runs as (
    select
        runs.run_id,
        runs.started_at,
        runs.name,
        runs.model,
        runs.prompt_set,
        runs.state,
        runs.message,
        runs.config_id
    from raw.runs
    join choose_line using (name, model, prompt_set)
    where runs.benchmark_id is null
        and purpose <> 'suite'
        and runs.state <> 'running'
        and (choose_line.only_config_id is null or runs.config_id = choose_line.only_config_id)
    qualify choose_line.only_config_id is not null
        or count(*) filter (purpose = 'night') over () = 0
        or count(*) filter (purpose = 'night') over (partition by runs.config_id) > 0
)

select
    list_runs.*,
    row_number() over (order by list_runs.started_at, run_id) as position,
    run_conditions.obstacle,
    gate_verdict.verdict,
    gate_verdict.baseline_run_id,
    gate_verdict.failed_limits,
    gate_verdict.words as verdict_words
from list_runs
left join internal.run_conditions using (run_id)
left join internal.gate_verdict using (run_id)
order by position;

comment on macro table internal.find_history is 'find_history(history), the name of a spec, the id of a run or a config_id: one row per run of one spec''s name, model and prompt set, in the order of their start, with the gate''s result.';

-- Grain: one row per run of a history × condition that is another one than in the run before it that knew.
--
-- `history` is as find_history takes it.
--
-- run_id: the run.
-- position: its place in the history, from 1.
-- started_at: UTC wall clock at the start of the run.
-- condition: model (digest of its content), served files (behind a server's name), prompts (digest of the rows),
--     settings (all else that the configuration is: runs.config_id), vLLM, torch, driver, device, machine, assayline.
-- before: what it was in the last run in which it is known.
-- after: what it is.
-- run_id_before: that last run.
create or replace macro internal.show_changes(history) as table
with

list_runs as (
    select
        found.run_id,
        found.position,
        found.started_at,
        runs.model_id,
        runs.config_id,
        runs.spec_hash,
        runs.machine,
        runs.assayline_version,
        run_conditions.device_name,
        run_conditions.driver_version,
        run_conditions.vllm_version,
        run_conditions.torch_version,
        run_conditions.served_root,
        run_conditions.prompts_digest
    from internal.find_history(history) as found
    join raw.runs using (run_id)
    left join internal.run_conditions using (run_id)
),

stack_conditions as (
    select run_id, position, started_at, condition, value
    from (
        select
            run_id,
            position,
            started_at,
            model_id as model,
            served_root as "served files",
            prompts_digest as prompts,
            config_id as settings,
            vllm_version as "vLLM",
            torch_version as torch,
            driver_version as driver,
            device_name as device,
            machine,
            assayline_version as assayline
        from list_runs
    )
    unpivot (
        value for condition in (
            model, "served files", prompts, settings, "vLLM", torch, driver, device, machine, assayline
        )
    )
),

pair_previous as (
    select
        run_id,
        position,
        started_at,
        condition,
        lag(value) over (partition by condition order by position) as before,
        value as after,
        lag(run_id) over (partition by condition order by position) as run_id_before
    from stack_conditions
),

-- config_id changes with the model's content, too. Where the spec is word for word the same, that alone changed.
find_changes as (
    select pair_previous.*
    from pair_previous
    join list_runs as now_run on now_run.run_id = pair_previous.run_id
    join list_runs as last_run on last_run.run_id = pair_previous.run_id_before
    where before <> after
        and not (
            condition = 'settings'
            and now_run.model_id <> last_run.model_id
            and now_run.spec_hash = last_run.spec_hash
        )
    order by position, condition
)

select * from find_changes;

comment on macro table internal.show_changes is 'show_changes(history), as find_history takes it: one row per run and condition that is another one than in the run before: model, served files, prompts, settings, vLLM, torch, driver, device, machine, assayline.';

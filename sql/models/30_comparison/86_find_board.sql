-- Grain: one row per task × model of a leaderboard.
--
-- `names` is a list: of run ids, names of specs, prompt sets and ids of benchmarks. Empty, it is all runs. Runs of a
-- benchmark count only by its id or their own. Judges are left out: their scores are of other runs' answers. Each
-- model has one run per spec and prompt set: one that can be compared with another model's, then the one with the most
-- prompts, then with the most models, then the newest. Models with the same content are one model,
-- unless running servers had several files behind one name.
--
-- A task is a prompt set as it was asked: the same prompt rows, settings and first scorer. Where two models or more
-- share that, it is a task; of a prompt set that no two models share, the newest complete run's is. A model that was
-- asked otherwise stands in its prompt set's first task, with the reason why it is not compared.
--
-- task: name of the prompt set, with a number from its second task on.
-- model: the model as the spec names it; with quantization and number types, if the engine's arguments name any;
--     with the beginning of its digest, if two models have one name, or with the server's files.
-- run_id: the run.
-- name: the spec's name.
-- scorer: the run's first scorer. NULL if it has none.
-- obstacle: why its score is not compared: not completed, requests without an answer, no scores, other prompts, another
--     scorer, other settings. NULL if it is.
-- reference_run_id: the newest run of the task that is compared; other runs are compared with it to find what differs.
-- prompts: different prompts that were scored; see accuracy.prompts.
-- samples: scores; see accuracy.samples.
-- mean: mean score of the first scorer, 0 to 1; see accuracy.mean.
-- mean_low: lower end of its 95% interval; see accuracy.mean_low.
-- mean_high: upper end.
-- error_requests: requests with an error, which score 0.
create or replace macro internal.find_board(names) as table
with

read_roots as (
    select
        run_id,
        string_agg(distinct details_json ->> '$.served_root', ', ' order by details_json ->> '$.served_root') as root
    from raw.engine_events
    where event = 'opened'
    group by run_id
),

list_runs as (
    select
        run_id,
        name,
        prompt_set,
        model_id,
        -- Only if it tells models apart.
        case
            when count(distinct root) over (partition by coalesce(model_id, model)) > 1
            then coalesce(root, 'unknown files')
        end as root,
        config_id,
        concat_ws(
            ', ',
            arg_max(model, (started_at, run_id)) over (partition by coalesce(model_id, model)),
            'quantization ' || (spec_json ->> '$.engine.args.quantization'),
            'dtype ' || (spec_json ->> '$.engine.args.dtype'),
            'kv_cache_dtype ' || (spec_json ->> '$.engine.args.kv_cache_dtype')
        ) as model,
        spec_json,
        expected_requests,
        state,
        started_at
    from raw.runs
    left join read_roots using (run_id)
    where state <> 'running'
        and run_id not in (select run_id from raw.scorers where kind = 'verdict')
        and (
            list_has_any(names::varchar[], [run_id, benchmark_id])
            or (benchmark_id is null and (len(names) = 0 or list_has_any(names::varchar[], [name, prompt_set])))
        )
),

choose_newest as materialized (
    select * exclude (config_id)
    from list_runs
    qualify row_number() over (
        partition by model, root, name, prompt_set, config_id
        order by state not in ('completed', 'imported'), started_at desc, run_id desc
    ) = 1
),

find_scorers as (
    select
        run_id,
        scorer,
        md5(concat_ws('/', scorer, kind, json_merge_patch(arguments_json, '{"harness": null}'), definition)) as judging
    from raw.scorers
    where run_id in (select run_id from choose_newest)
    qualify row_number() over (partition by run_id order by ordinal, scorer) = 1
),

count_answers as (
    select
        run_id,
        count(distinct request_id) filter (error_kind is distinct from 'not_sent') as answered_requests,
        count(distinct request_id) filter (error_kind <> 'not_sent') as error_requests
    from raw.completions
    where run_id in (select run_id from choose_newest)
    group by run_id
),

scored as (
    select
        run_id,
        detail as scorer,
        max(value) filter (metric = 'scored_prompts') as prompts,
        max(n) filter (metric = 'accuracy') as samples,
        max(value) filter (metric = 'accuracy') as mean,
        max(low) filter (metric = 'accuracy') as mean_low,
        max(high) filter (metric = 'accuracy') as mean_high
    from raw.metric_values
    where run_id in (select run_id from choose_newest) and metric in ('accuracy', 'scored_prompts')
    group by run_id, detail
),

describe_runs as (
    select
        choose_newest.* exclude (model, root),
        case
            when root is not null then choose_newest.model || ' @' || root
            when count(distinct choose_newest.model_id) over (partition by choose_newest.model) > 1
            then choose_newest.model || ' @' || left(choose_newest.model_id, 8)
            else choose_newest.model
        end as model,
        find_scorers.scorer,
        find_scorers.judging,
        run_conditions.prompts_digest,
        md5(concat_ws(
            '/',
            spec_json -> '$.sampling',
            spec_json -> '$.chat',
            spec_json -> '$.output',
            spec_json -> '$.reasoning',
            spec_json -> '$.prompts.repeats',
            spec_json -> '$.prompts.source.num_fewshot',
            spec_json -> '$.prompts.source.apply_chat_template'
        )) as settings,
        choose_newest.expected_requests - coalesce(count_answers.answered_requests, 0) as open_requests,
        coalesce(count_answers.error_requests, 0) as error_requests,
        cast(scored.prompts as bigint) as prompts,
        scored.samples,
        scored.mean,
        scored.mean_low,
        scored.mean_high
    from choose_newest
    left join find_scorers using (run_id)
    left join internal.run_conditions using (run_id)
    left join count_answers using (run_id)
    left join scored on scored.run_id = choose_newest.run_id and scored.scorer = find_scorers.scorer
),

check_asked as (
    select
        *,
        case
            when state not in ('completed', 'imported') then 'it is ' || state || ', not completed'
            when open_requests > 0
            then printf('%d of its %d requests have no answer', open_requests, expected_requests)
            when mean is null then 'it has no scores'
        end as gap,
        count(distinct model) filter (gap is null) over (
            partition by prompt_set, prompts_digest, judging, settings
        ) as models
    from describe_runs
),

check_runs as materialized (
    select *
    from check_asked
    qualify row_number() over (
        partition by model, name, prompt_set
        order by gap is not null, state not in ('completed', 'imported'),
            models = 1, prompts desc, models desc, started_at desc,
            run_id desc
    ) = 1
),

-- How many models share a way of asking, and since when.
count_shares as (
    select
        prompt_set,
        prompts_digest,
        judging,
        settings,
        count(distinct model) as models,
        max(prompts) as most_prompts,
        max(started_at) as newest_at,
        arg_max(run_id, (started_at, run_id)) as reference_run_id
    from check_runs
    where gap is null
    group by prompt_set, prompts_digest, judging, settings
),

number_tasks as (
    select
        *,
        row_number() over (
            partition by prompt_set
            order by models = 1, most_prompts desc, models desc, newest_at desc, settings, judging
        ) as number
    from count_shares
    qualify models > 1 or number = 1
),

join_shared as (
    select check_runs.*, number_tasks.number, number_tasks.reference_run_id, gap as obstacle
    from check_runs
    join number_tasks using (prompt_set, prompts_digest, judging, settings)
    where gap is null
),

join_others as (
    select
        check_runs.*,
        coalesce(first_task.number, 1) as number,
        first_task.reference_run_id,
        coalesce(gap, case
            when check_runs.prompts_digest is distinct from first_task.prompts_digest then 'it was asked other prompts'
            when check_runs.judging is distinct from first_task.judging
            then 'it was scored by another scorer, or by another version of it: `assayline score --stale` scores again'
            else 'it was asked with other settings'
        end) as obstacle
    from check_runs
    left join number_tasks as first_task on first_task.prompt_set = check_runs.prompt_set and first_task.number = 1
    where not exists (
        select 1 from join_shared
        where join_shared.prompt_set = check_runs.prompt_set and join_shared.model = check_runs.model
    )
),

-- Two specs that ask the same of one model are one cell: the newer run's.
choose_cells as materialized (
    select * from join_shared
    union all by name
    select * from join_others
    qualify row_number() over (
        partition by prompt_set, number, model
        order by state not in ('completed', 'imported'), started_at desc, run_id desc
    ) = 1
),

name_tasks as (
    select
        prompt_set || case when number = 1 then '' else ' (' || number || ')' end as task,
        model,
        run_id,
        name,
        scorer,
        obstacle,
        reference_run_id,
        prompts,
        samples,
        mean,
        mean_low,
        mean_high,
        error_requests
    from choose_cells
    order by prompt_set, number, obstacle is not null, mean desc, model
)

select * from name_tasks;

comment on macro table internal.find_board is 'find_board(names), a list of run ids, spec names, prompt sets and benchmark ids, or []: one row per task and model, with the score and its interval, and why it is not compared, if it is not.';

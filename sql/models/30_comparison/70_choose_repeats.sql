-- Grain: one row per run that counts as a repeat of the candidate or of the baseline.
--
-- A repeat has the run's config_id and environment, and no obstacle (run_conditions). For a run of a benchmark,
-- repeats of the same benchmark count. For any other run, repeats up to it count. If both runs have the same
-- configuration, as on a schedule, the later side has only those after the earlier run. Each side has at most its
-- newest ten.
--
-- side: candidate or baseline.
-- run_id: the repeat.
-- started_at: when it started, UTC.
create or replace macro internal.choose_repeats(candidate, baseline) as table
with

read_sides as (
    select
        case when run_id = candidate then 'candidate' else 'baseline' end as side,
        *
    from internal.run_conditions
    where run_id in (candidate, baseline) and candidate <> baseline
),

face_sides as (
    select
        one.*,
        other.run_id as other_id,
        case
            when other.config_id = one.config_id
                and other.environment = one.environment
                and (other.started_at, other.run_id) < (one.started_at, one.run_id)
                then other.started_at
        end as after_at
    from read_sides as one
    join read_sides as other on other.side <> one.side
),

find_repeats as (
    select face_sides.side, run_conditions.run_id, run_conditions.started_at
    from face_sides
    join internal.run_conditions
        on run_conditions.config_id = face_sides.config_id
        and run_conditions.environment = face_sides.environment
        and run_conditions.benchmark_id is not distinct from face_sides.benchmark_id
    where run_conditions.obstacle is null
        and case
            when face_sides.benchmark_id is not null then true
            when run_conditions.run_id = face_sides.other_id then false
            else run_conditions.started_at <= face_sides.started_at
                and run_conditions.started_at > coalesce(face_sides.after_at, timestamp '-infinity')
        end
    qualify row_number() over (
        partition by face_sides.side
        order by run_conditions.started_at desc, run_conditions.run_id desc
    ) <= 10
    order by face_sides.side, run_conditions.started_at, run_conditions.run_id
)

select * from find_repeats;

comment on macro table internal.choose_repeats is 'choose_repeats(candidate, baseline), two run ids: one row per run that counts as a repeat of either. For compare_repeats.';

-- Grain: one row per run that counts as a repeat of the candidate or of the baseline.
--
-- A repeat has the run's config_id and place, and no obstacle (run_conditions), or with `for_accuracy` no
-- answers_obstacle. If any of these was sent longest
-- answers first, only such runs count, as a first run is sent in the order given. For a run of a benchmark, repeats
-- of the same benchmark count. For any other run, repeats up to it count. The earlier of the two runs, such as a
-- pinned first night, also has the repeats right after it, up to five in all. If both runs have the same
-- configuration, as on a schedule, the later one has only repeats after all of these. Each side has at most its
-- newest ten.
--
-- side: candidate or baseline.
-- run_id: the repeat.
-- started_at: when it started, UTC.
create or replace macro internal.choose_repeats(candidate, baseline, for_accuracy := false) as table
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
        one.benchmark_id is not null as is_benchmark,
        (other.started_at, other.run_id) < (one.started_at, one.run_id) as is_later,
        other.started_at as other_started_at,
        one.config_id = other.config_id and one.place = other.place as is_same
    from read_sides as one
    join read_sides as other on other.side <> one.side
),

list_runs as (
    select
        face_sides.*,
        run_conditions.run_id as repeat_id,
        run_conditions.started_at as repeat_started_at
    from face_sides
    join internal.run_conditions
        on run_conditions.config_id = face_sides.config_id
        and run_conditions.place = face_sides.place
        and run_conditions.benchmark_id is not distinct from face_sides.benchmark_id
    where case when for_accuracy then run_conditions.answers_obstacle else run_conditions.obstacle end is null
        and (
            is_benchmark
            or run_conditions.run_id <> other_id
            and run_conditions.started_at <= greatest(face_sides.started_at, other_started_at)
        )
    qualify run_conditions.is_longest_first
        = bool_or(run_conditions.is_longest_first) over (partition by face_sides.side)
),

find_repeats as (
    select
        *,
        is_benchmark
        or repeat_started_at <= started_at
        or row_number() over (partition by side order by repeat_started_at, repeat_id) <= 5 as is_repeat
    from list_runs
)

select side, repeat_id as run_id, repeat_started_at as started_at
from find_repeats
where is_repeat
    and (
        is_benchmark
        or not is_later
        or not is_same
        or repeat_started_at > greatest(
            other_started_at,
            (select max(repeat_started_at) from find_repeats where is_repeat and not is_later and not is_benchmark)
        )
    )
qualify row_number() over (partition by side order by repeat_started_at desc, repeat_id desc) <= 10
order by side, repeat_started_at, repeat_id;

comment on macro table internal.choose_repeats is 'choose_repeats(candidate, baseline, for_accuracy := false), two run ids: one row per run that counts as a repeat of either, for speed or for accuracy.';

-- Grain: one row per property × value of the samples of a run, by the run's first scorer.
--
-- Properties are the finish reason, each metadata column of the prompts that has 2 to `most_values` values, and the
-- answer of wrong samples, of which the `most_values` most frequent are listed that were given more than once.
--
-- scorer: the run's first scorer.
-- property: finish reason, wrong answer, or the name of a metadata column.
-- value: its value: of a wrong answer what the scorer took from it, or else the whole answer.
-- samples: samples with that value.
-- wrong_samples: those of them that scored 0.
-- mean_value: mean score of the samples.
create or replace macro internal.show_groups(run, most_values) as table
with

choose_samples as (
    select
        scores.*,
        stg_samples.finish_reason,
        coalesce(scores.extracted, stg_samples.answer) as taken
    from (select * from raw.scores where run_id = run) as scores
    join (select * from internal.stg_samples where run_id = run) as stg_samples
        using (prompt_id, occurrence, repeat_index)
    where scores.scorer = (select scorers.scorer from raw.scorers where scorers.run_id = run order by ordinal limit 1)
),

read_columns as (
    select distinct prompt_id, occurrence, metadata_json, unnest(json_keys(metadata_json)) as property
    from raw.prompts
    where run_id = run
),

name_properties as (
    select scorer, 0 as place, 'finish reason' as property, finish_reason as value, scores.value as score
    from choose_samples as scores
    where finish_reason is not null
    union all
    select
        scorer,
        1,
        property,
        metadata_json ->> ('/' || replace(replace(property, '~', '~0'), '/', '~1')),
        scores.value
    from choose_samples as scores
    join read_columns using (prompt_id, occurrence)
    union all
    select scorer, 2, 'wrong answer', taken, scores.value
    from choose_samples as scores
    where scores.value = 0 and taken is not null
),

count_values as (
    select
        place,
        scorer,
        property,
        value,
        count(*) as samples,
        count(*) filter (score = 0) as wrong_samples,
        avg(score) as mean_value,
        count(*) over (partition by place, property) as property_values,
        row_number() over (partition by place, property order by count(*) desc, value) as rank
    from name_properties
    where value is not null
    group by place, scorer, property, value
),

keep_few as (
    select scorer, property, value, samples, wrong_samples, mean_value
    from count_values
    where
        place = 0
        or place = 1 and property_values between 2 and most_values
        or place = 2 and samples > 1 and rank <= most_values
    order by place, property, mean_value, samples desc, value
)

select * from keep_few;

comment on macro table internal.show_groups is 'show_groups(run, most_values): mean scores by finish reason and by each metadata column with few values, and the wrong answers that were given most often, by the run''s first scorer.';

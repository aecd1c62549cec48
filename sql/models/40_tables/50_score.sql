-- Grain: one row per sample of a run × scorer. A sample is a prompt row × a repeat.
-- columns of: raw.scores, raw.scorers
create or replace view main.score as
select
    scores.run_id,
    scores.scorer,
    scorers.kind,
    scores.prompt_id,
    scores.occurrence,
    scores.repeat_index,
    scores.value,
    scores.extracted,
    scores.explanation,
    scores.error_kind,
    scores.found_by,
    scorers.definition
from raw.scores
left join raw.scorers on scorers.run_id = scores.run_id and scorers.scorer = scores.scorer;

comment on view main.score is 'One row per sample (prompt row × repeat) of a run × scorer. A prompt without a target has none, if the scorer needs one.';

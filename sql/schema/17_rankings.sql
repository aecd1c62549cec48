-- Grain: one row per ranking × task × model. A ranking is a kind and the names that it was asked for.
create table if not exists raw.rankings (
    kind varchar not null,
    names varchar[] not null,
    task varchar not null,
    model varchar,
    run_id varchar not null,
    scorer varchar,
    value double,
    low double,
    high double,
    prompts bigint,
    best_rank integer,
    worst_rank integer,
    is_winner boolean not null,
    obstacle varchar,
    ranked_at timestamp not null
);

comment on table raw.rankings is 'One row per ranking × task × run, stored when a leaderboard is made: of models by their scores, and of runs that judges compared in pairs. A ranking of the same names replaces the last one; a change of a run''s rows deletes its rankings.';
comment on column raw.rankings.kind is 'scores: models by their mean scores. judged pairs: runs by Bradley–Terry strengths of their answers.';
comment on column raw.rankings.names is 'Names that the leaderboard was asked for: run ids, specs, prompt sets and benchmarks; empty for all runs. Of judged pairs: run ids of the judges.';
comment on column raw.rankings.task is 'The prompt set as it was asked: same rows, settings and scorer; with a number from its second task on. Of judged pairs: the rubric.';
comment on column raw.rankings.model is 'The model as the spec names it, with what else tells it from others. NULL for a judged run that is not in this database.';
comment on column raw.rankings.run_id is 'The run whose score counts.';
comment on column raw.rankings.scorer is 'Its first scorer. NULL if it has none, and for judged pairs.';
comment on column raw.rankings.value is 'Mean score, 0 to 1. Of judged pairs: strength with mean 0, a difference of 1 being odds of e = 2.7 to 1 between answers of equal length; half a win and half a loss are added to each pair of runs. NULL unless comparisons link every run to every other.';
comment on column raw.rankings.low is 'Lower end of the value''s 95% interval, clustered by prompt for strengths. NULL for fewer than five effective prompts.';
comment on column raw.rankings.prompts is 'Different prompts that were scored or compared.';
comment on column raw.rankings.best_rank is '1 + the number of models that are better by more than chance, in Holm''s step-down over all pairs of all tasks. NULL if it is not compared.';
comment on column raw.rankings.worst_rank is 'The number of models − those that are worse by more than chance. All true ranks of the ranking lie within these intervals at once, 19 times in 20.';
comment on column raw.rankings.is_winner is 'Whether it is better than every other model of the task by more than chance.';
comment on column raw.rankings.obstacle is 'Why its score is not compared. NULL if it is.';
comment on column raw.rankings.ranked_at is 'UTC wall clock when it was computed.';

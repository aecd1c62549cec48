-- Grain: one row per ranking × task × model.
-- columns of: raw.rankings
create or replace view main.ranking as
select * from raw.rankings order by kind, names, task, obstacle is not null, value desc, model;

comment on view main.ranking is 'One row per ranking × task × run, with score or strength, 95% interval and rank as an interval: 1 to 3 if the data cannot separate the first three. `assayline report --leaderboard NAMES` stores it.';

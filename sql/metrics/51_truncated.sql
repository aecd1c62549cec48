-- Mean scores of answers that max_tokens cut off, and of the others. Grain: one row per scorer × whether it was.
select
    case when truncated then 'accuracy_truncated' else 'accuracy_not_truncated' end as metric,
    'mean' as statistic,
    scorer as detail,
    avg(value) as value,
    count(*) as n,
    'share' as unit,
    true as higher_is_better
from request
join raw.scores using (run_id, prompt_id, occurrence, repeat_index)
where run_id = getvariable('run_id')
    and truncated is not null
    and status = 'ok'
    and (turn_index is null or turn_index = turns - 1)
group by scorer, truncated;

-- Cost of right answers: each cluster's share of the cost and of the first scorer's scores. A sample's weight is what
-- its tokens cost, if tokens alone are paid for, else its output tokens, as they take the time.
-- Grain: one row.
with prices as (
    select
        coalesce(price ->> '$.per_gpu_hour', price ->> '$.per_machine_hour', price ->> '$.per_kwh') is not null
            as is_timed,
        coalesce(try_cast(price ->> '$.per_million_input_tokens' as double), 0) as input,
        coalesce(try_cast(price ->> '$.per_million_cached_tokens' as double), input) as cached,
        coalesce(try_cast(price ->> '$.per_million_output_tokens' as double), 0) as output
    from (select spec_json -> '$.price' as price from raw.runs where run_id = getvariable('run_id'))
),

samples as (
    select
        run_id,
        prompt_id,
        occurrence,
        repeat_index,
        count(*) filter (status = 'ok') as ok,
        sum(case
            when status <> 'ok' then 0
            when is_timed then output_tokens
            else input * (prompt_tokens - coalesce(cached_tokens, 0)) + cached * coalesce(cached_tokens, 0)
                + output * output_tokens
        end) as weight,
        count(*) filter (status = 'ok' and output_tokens is null) as unknown
    from request, prices
    where run_id = getvariable('run_id')
    group by run_id, prompt_id, occurrence, repeat_index
),

clusters as (
    select
        count(value) as size,
        sum(weight) as all_weight,
        sum(weight) filter (value is not null) as weight,
        sum(value) as value,
        sum(unknown) as unknown,
        coalesce(sum(ok) filter (value is null), 0) as unscored
    from samples
    left join (
        select prompt_id, occurrence, repeat_index, value
        from raw.scores
        where run_id = getvariable('run_id') and scorer = (
            select arg_min(scorer, ordinal) from raw.scorers where run_id = getvariable('run_id')
        )
    ) using (prompt_id, occurrence, repeat_index)
    left join prompt_cluster using (run_id, prompt_id, occurrence)
    group by coalesce(cluster, prompt_id)
),

shares as (
    select
        *,
        weight / nullif(sum(weight) over (), 0) - value / nullif(sum(value) over (), 0) as deviation,
        size / sum(size) over () as size_share
    from clusters
)

select
    sum(value) as right_answers,
    case
        when sum(unscored) = 0 then 1
        when sum(unknown) = 0 then sum(weight) / nullif(sum(all_weight), 0)
    end as scored_share,
    count(value) as clusters,
    sum(unknown) as unknown,
    sum((deviation / (1 - size_share)) ** 2) as moves,
    sum(size_share ** 2) as square_shares,
    sum(size_share ** 4) as fourth_shares
from shares;

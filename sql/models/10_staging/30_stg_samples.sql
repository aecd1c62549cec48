-- Grain: one row per sample of a run: a prompt row × a repeat. The requests for its options, if any, are one sample.
-- For a conversation sent turn by turn, the sample is the answer to the last turn.
create or replace view internal.stg_samples as
with

take_answers as (
    select
        run_id,
        prompt_id,
        occurrence,
        repeat_index,
        source_row,
        request_id,
        case when status = 'unsent' then 'missing' else status end as status,
        case when status = 'ok' then text end as answer,
        target,
        finish_reason,
        truncated,
        cast(null as varchar[]) as options,
        cast(null as double[]) as option_logprobs,
        cast(null as integer[]) as option_tokens,
        case when status = 'error' then error_kind end as error_kind,
        case when status = 'error' then error_message end as error_message
    from stg_requests
    where option_index is null and (turn_index is null or turn_index = turns - 1)
),

-- A sample needs all of its options: one missing option makes it missing, otherwise one error makes it an error.
gather_options as (
    select
        run_id,
        prompt_id,
        occurrence,
        repeat_index,
        source_row,
        arg_min(request_id, option_index) as request_id,
        case
            when count(*) filter (status in ('missing', 'unsent')) > 0 then 'missing'
            when count(*) filter (status = 'error') > 0 then 'error'
            else 'ok'
        end as status,
        cast(null as varchar) as answer,
        any_value(target) as target,
        cast(null as varchar) as finish_reason,
        cast(null as boolean) as truncated,
        list(option order by option_index) as options,
        list(option_logprob order by option_index) as option_logprobs,
        list(option_tokens order by option_index) as option_tokens,
        arg_min(error_kind, option_index) filter (status = 'error') as error_kind,
        arg_min(error_message, option_index) filter (status = 'error') as error_message
    from stg_requests
    where option_index is not null
    group by run_id, prompt_id, occurrence, repeat_index, source_row
),

drop_partial_likelihoods as (
    select * replace (case when status = 'ok' then option_logprobs end as option_logprobs)
    from gather_options
)

from take_answers
union all
from drop_partial_likelihoods;

comment on view internal.stg_samples is 'One row per sample of a run (a prompt row × a repeat), as scorers see it: the answer, or the likelihoods of the options, and the target. For a conversation sent turn by turn, the answer to its last turn.';

-- Grain: one row per answer that a run of kind reread has read, and that its reference's engine has read itself.
--
-- request_id: the request, in every run that read the answer, and in the run that gave it.
-- prompt_id: the prompt.
-- occurrence: which of the rows with that prompt_id.
-- cluster: value in the column that the reference's spec names in prompts.columns.cluster, else prompt_id.
-- tokens: tokens of the answer.
-- kl: mean of compare_tokens.kl over its tokens, nats.
-- floor_kl: the same between two readings by the reference's own engine, in different batches. NULL without a second
--     one.
-- nll_change: mean negative log-probability of its tokens, minus that for the reference's engine, nats.
-- other_tokens: tokens at which the two engines have different first choices.
-- first_other: 1-based place of the first of these. NULL if there is none.
-- logprob_changes: change of each token's log-probability, without its sign, in no order.
create or replace macro internal.reread_answer(run) as table
with

name_reads as (
    select
        spec_json ->> '$.prompts.source.run' as source_run_id,
        spec_json ->> '$.prompts.source.reads[0]' as own_run_id,
        spec_json ->> '$.prompts.source.reads[1]' as again_run_id
    from raw.runs
    where run_id = run
),

compare_answers as (
    select
        request_id,
        count(*) as tokens,
        avg(kl) as kl,
        avg(reference_logprob - candidate_logprob) as nll_change,
        count(*) filter (not is_same_top) as other_tokens,
        min(position) filter (not is_same_top) + 1 as first_other,
        list(abs(candidate_logprob - reference_logprob)) as logprob_changes
    from internal.compare_tokens((select own_run_id from name_reads), run)
    group by request_id
),

compare_itself as (
    select request_id, avg(kl) as floor_kl
    from internal.compare_tokens((select own_run_id from name_reads), (select again_run_id from name_reads))
    group by request_id
)

select
    compare_answers.request_id,
    requests.prompt_id,
    requests.occurrence,
    coalesce(prompt_cluster.cluster, requests.prompt_id) as cluster,
    compare_answers.tokens,
    compare_answers.kl,
    compare_itself.floor_kl,
    compare_answers.nll_change,
    compare_answers.other_tokens,
    compare_answers.first_other,
    compare_answers.logprob_changes
from compare_answers
join (select * from raw.requests where run_id = run) as requests using (request_id)
left join compare_itself using (request_id)
left join (
    select * from internal.prompt_cluster where run_id = (select source_run_id from name_reads)
) as prompt_cluster using (prompt_id, occurrence)
order by requests.prompt_id, requests.occurrence, compare_answers.request_id;

comment on macro table internal.reread_answer is 'reread_answer(run), a run of kind reread: one row per answer that it has read, compared with the reading by the reference''s own engine.';

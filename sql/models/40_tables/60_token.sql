-- Grain: one row per run × request × position: a token of an answer that the run's engine read.
-- columns of: raw.tokens
create or replace view main.token as
select
    *,
    top_token_ids[1] as first_token_id,
    top_logprobs[1] as first_logprob
from raw.tokens;

comment on view main.token is 'One row per run × request × position: a token of a stored answer, as the engine of a run of kind reread sees it after the prompt and the answer''s tokens before it.';
comment on column main.token.first_token_id is 'The engine''s own first choice.';
comment on column main.token.first_logprob is 'Its log-probability (natural logarithm), to three decimals.';

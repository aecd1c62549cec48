-- Grain: one row per run × request × position: a token of an answer that the run's engine read.
create table if not exists raw.tokens (
    run_id varchar not null,
    request_id varchar not null,
    position integer not null,
    token_id integer not null,
    logprob double not null,
    rank integer,
    top_token_ids integer[] not null,
    top_logprobs double[] not null,
    rest_share double not null
);

comment on table raw.tokens is 'One row per run × request × position: a token of a stored answer, as the engine of a run of kind reread sees it after the prompt and the answer''s tokens before it.';
comment on column raw.tokens.request_id is 'The request, in the run that read the answer and in the run that gave it.';
comment on column raw.tokens.position is '0-based position in the answer.';
comment on column raw.tokens.token_id is 'The token that the answer has there.';
comment on column raw.tokens.logprob is 'Its log-probability (natural logarithm) at temperature 1.';
comment on column raw.tokens.rank is '1 if it is the engine''s own first choice, and so on; NULL beyond the 20 likeliest tokens.';
comment on column raw.tokens.top_token_ids is 'The 20 likeliest tokens, the first choice first, without others below 0.004.';
comment on column raw.tokens.top_logprobs is 'Their log-probabilities (natural logarithm), to three decimals.';
comment on column raw.tokens.rest_share is 'Probability of all other tokens together, to seven decimals.';

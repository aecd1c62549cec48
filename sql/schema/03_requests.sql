-- Grain: one row per request: a prompt row × a repeat, × an option for likelihoods, × a turn for conversations sent
-- turn by turn.
create table if not exists raw.requests (
    run_id varchar not null,
    request_id varchar not null,
    prompt_id varchar not null,
    occurrence integer not null,
    repeat_index integer not null,
    prompt_token_ids integer[],
    sampling_json varchar not null,
    rendered varchar,
    option_index integer,
    option varchar,
    option_tokens integer,
    messages_json varchar,
    media_json varchar,
    expected_output_tokens integer,
    due_offset_s double,
    turn_index integer,
    turns integer,
    turn_messages_json varchar
);

comment on table raw.requests is 'One row per request: a prompt row × a repeat, × an option or a turn if there are any, as the engine received it.';
comment on column raw.requests.request_id is 'Digest of prompt_id, occurrence, repeat_index and, if there is one, option_index or turn_index.';
comment on column raw.requests.prompt_token_ids is 'The rendered prompt as token ids. NULL if its error row was written before it reached an engine, if a server renders the prompt, and for turns after the first, whose prompts are built when they are sent.';
comment on column raw.requests.sampling_json is 'Arguments of vllm.SamplingParams for this request, as JSON.';
comment on column raw.requests.rendered is 'The rendered prompt as text, special tokens included; NULL for a turn after the first.';
comment on column raw.requests.option_index is '0-based option whose likelihood is asked for. NULL for generated answers.';
comment on column raw.requests.option is 'That option''s text, which ends the rendered prompt.';
comment on column raw.requests.option_tokens is 'How many of the prompt''s last tokens are the option.';
comment on column raw.requests.messages_json is 'The chat as JSON, if a server renders the prompt. NULL if it was rendered locally.';
comment on column raw.requests.media_json is 'Images, audio and video of the prompt as JSON, a list of {kind, path, digest} in the order of their placeholders. NULL for text-only prompts.';
comment on column raw.requests.expected_output_tokens is 'Median length of the answers that earlier runs of the model gave to the prompt, in tokens, as known when the run began and used to order it (engine.order); NULL if nothing was known, or the order given was kept.';
comment on column raw.requests.due_offset_s is 'How long after its trace''s first request this one came, in seconds at the speed recorded. NULL if the prompt is not from a trace.';
comment on column raw.requests.turn_index is '0-based turn of its conversation. NULL if the conversation is not sent turn by turn.';
comment on column raw.requests.turns is 'How many turns its conversation has; NULL if turn_index is.';
comment on column raw.requests.turn_messages_json is 'Messages that this turn adds to its conversation, as JSON. Its prompt has the messages of earlier turns, each followed by the model''s own answer, and then these. NULL if turn_index is, or if no turn of the conversation can be sent.';

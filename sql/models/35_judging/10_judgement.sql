-- Grain: one row per request of a judge's run × scorer of kind verdict.
-- A judge is a run whose prompts are the stored answers of another run. Its prompts' metadata name the judged answer.
create or replace view main.judgement as
from internal.find_judgements(null);

comment on view main.judgement is 'One row per request of a judge''s run × scorer of kind verdict: the judged answer, the verdict on it and a person''s label. For pairs, two answers to one prompt, shown in either order.';
comment on column main.judgement.judge_run_id is 'The judge''s run.';
comment on column main.judgement.scorer is 'Its scorer, as in scorers.';
comment on column main.judgement.prompt_id is 'The judge''s prompt.';
comment on column main.judgement.occurrence is 'Which of the judge''s rows with that prompt_id.';
comment on column main.judgement.repeat_index is '0-based repeat of the judge''s prompt.';
comment on column main.judgement.judged_run_id is 'Run of the judged answer; for pairs, of answer a.';
comment on column main.judgement.judged_prompt_id is 'Prompt of the judged answer.';
comment on column main.judgement.judged_occurrence is 'Which of the judged run''s rows with that prompt_id.';
comment on column main.judgement.judged_repeat_index is '0-based repeat that gave the judged answer.';
comment on column main.judgement.other_run_id is 'Run of answer b. NULL unless the judge compares pairs, like the next four columns.';
comment on column main.judgement.other_prompt_id is 'Prompt of answer b.';
comment on column main.judgement.other_occurrence is 'Which of that run''s rows with that prompt_id.';
comment on column main.judgement.other_repeat_index is '0-based repeat that gave answer b.';
comment on column main.judgement.first is 'Answer that was shown first: a or b.';
comment on column main.judgement.status is 'judged: there is a verdict; unreadable: the judge''s answer has none; error: the request failed; missing: no score (yet). Only judged rows have a verdict, value and reason.';
comment on column main.judgement.verdict is 'The verdict as the judge wrote it: a word of the scorer''s values, or a number of its scale.';
comment on column main.judgement.value is 'The verdict as a number from 0 to 1; for pairs that of answer a: 1 if it wins, 0.5 for a tie.';
comment on column main.judgement.reason is 'The judge''s reason.';
comment on column main.judgement.label is 'A person''s verdict: the label of the judged answer in the table label, else the metadata column of the judged prompt that the scorer''s label names. NULL if there is none.';
comment on column main.judgement.label_value is 'The label as a number from 0 to 1, as value; for pairs a is 1, b is 0, and the word for a tie is 0.5. NULL if label is not one of these words or a number of the scale.';

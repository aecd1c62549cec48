alter table if exists raw.verdicts add column prompts_json varchar;

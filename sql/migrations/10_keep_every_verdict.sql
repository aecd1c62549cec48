-- Each judgement is kept, with its limits and the flow run that made it. Older databases may have no verdicts yet.
alter table if exists verdicts add column limits_json varchar;
alter table if exists verdicts add column flow_run_id varchar;

-- Definitions of scorers, and which scores are of errors. Scorers of one version of assayline count as equal.
alter table scorers add column definition varchar;
alter table scores add column error_kind varchar;
update scorers set definition = 'assayline ' || assayline_version;
update scores set error_kind = substr(explanation, 8)
where value = 0 and extracted is null and starts_with(explanation, 'error: ');

-- How late the event loop of a streaming engine's client is.
alter table telemetry add column loop_lags_s double[];

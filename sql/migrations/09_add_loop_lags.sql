-- How late the event loop of a streaming engine's client is.
alter table telemetry add column loop_lags_s double[];

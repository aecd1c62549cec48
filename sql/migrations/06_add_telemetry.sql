-- KV cache and queue counters of engines. The table device_telemetry is new, and made with the others.
alter table telemetry add column kv_cache_usage_share double;
alter table telemetry add column running_requests integer;
alter table telemetry add column waiting_requests integer;
alter table telemetry add column preemptions bigint;

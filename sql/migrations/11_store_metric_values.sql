-- Metrics were kept in schemas of their own. They are computed again when they are first read.
drop schema if exists live_metrics cascade;
drop schema if exists kept_metrics cascade;

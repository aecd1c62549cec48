-- Rankings are stored, in a table that sql/schema makes, and earlier versions had none.
alter table raw.scores add column found_by varchar;

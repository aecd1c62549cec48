-- When a request of a trace came.
alter table requests add column due_offset_s double;

-- Conversations that are sent turn by turn.
alter table requests add column turn_index integer;
alter table requests add column turns integer;
alter table requests add column turn_messages_json varchar;

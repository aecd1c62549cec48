alter table raw.runs add column machine varchar;
alter table raw.runs add column purpose varchar;
update raw.runs set purpose = case when benchmark_id is null then 'evaluate' else 'benchmark' end;

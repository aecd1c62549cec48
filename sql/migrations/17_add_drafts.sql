alter table raw.completions add column draft_tokens integer;
alter table raw.completions add column acceptance_histogram integer[];

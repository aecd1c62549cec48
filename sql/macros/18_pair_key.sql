-- The key of a prompt row in a comparison of two runs: rows of both with the same key are a pair.
--
-- `pairing` is prompt (prompt_id and occurrence), id (source_id and target) or row (source_row and target). A row
-- without an id, or by row without a target, has a key that no other run has.
create or replace macro internal.pair_key(pairing, run_id, prompt_id, occurrence, source_id, source_row, target) as case
    when pairing = 'prompt' then [prompt_id, cast(occurrence as varchar)]
    when pairing = 'id' and source_id is not null then [source_id, target]
    when pairing = 'row' and target is not null then [cast(source_row as varchar), target]
    else [run_id, prompt_id, cast(occurrence as varchar)]
end;

comment on macro internal.pair_key is 'pair_key(pairing, run_id, prompt_id, occurrence, source_id, source_row, target): the key by which pair_prompts pairs a prompt row; pairing is prompt, id or row.';

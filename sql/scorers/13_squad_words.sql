-- Words that F1 is computed over.
create or replace macro internal.squad_words(text) as
list_filter(
    regexp_split_to_array(regexp_replace(lower(text), '[[:punct:]]', '', 'g'), '[\s\v\p{Z}\x1c-\x1f\x{85}]+'),
    lambda word: word not in ('', 'a', 'an', 'the')
);

comment on macro internal.squad_words is 'The words of a text as SQuAD''s evaluation script normalises them (Rajpurkar et al. 2016): lower case, without ASCII punctuation, without the words a, an and the, split at white space.';

-- Result of every scorer. A score without a target is NULL: there is nothing to compare the answer with.
create or replace macro internal.make_score(value, extracted, explanation, found_by := null) as
{
    'value': cast(value as double),
    'extracted': cast(extracted as varchar),
    'explanation': cast(explanation as varchar),
    'found_by': cast(found_by as varchar)
};

comment on macro internal.make_score is 'A score: value from 0 to 1, the answer that was extracted (NULL if there is none), why, in words, and how the answer was found.';

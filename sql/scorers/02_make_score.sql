-- What every scorer returns. A score without a target is NULL: there is nothing to hold the answer against.
create or replace macro internal.make_score(value, extracted, explanation) as
{
    'value': cast(value as double),
    'extracted': cast(extracted as varchar),
    'explanation': cast(explanation as varchar)
};

comment on macro internal.make_score is 'A score: value from 0 to 1, the answer that was extracted (NULL where there is none), and why, in words.';

-- Whether two numbers are the same within a tolerance.
create or replace macro internal.numbers_agree(found, wanted, tolerance, relative_tolerance) as
coalesce(
    isfinite(wanted)
    and (found = wanted or abs(found - wanted) <= greatest(tolerance, (relative_tolerance + 1e-15) * abs(wanted))),
    false
);

comment on macro internal.numbers_agree is 'Whether |found − wanted| ≤ max(tolerance, relative_tolerance × |wanted|). The rounding of doubles, 1e-15 × |wanted|, is always allowed. A number beyond 1.8e308 agrees with none.';

-- DuckDB has no distributions. Up to ten degrees the quantile is a figure from a table, beyond them Cornish and
-- Fisher's
-- expansion around z = 1.96, whose error is below 1e-5 there.
create or replace macro internal.t_quantile(degrees) as
case
    when degrees < 1 then null
    when degrees <= 10
    then list_extract(
        [
            12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836,
            2.446911851, 2.364624252, 2.306004135, 2.262157163, 2.228138852
        ],
        cast(degrees as bigint)
    )::double
    else 1.959963984540054
        + 2.372271230298562 / degrees
        + 2.8224986157396112 / degrees ** 2
        + 2.555849679507722 / degrees ** 3
        + 1.5895340533938225 / degrees ** 4
end;

comment on macro internal.t_quantile is 'The 97.5% quantile of Student''s t distribution with the given degrees of freedom, to five digits. NULL below one degree.';

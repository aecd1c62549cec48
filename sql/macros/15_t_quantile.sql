-- DuckDB has no distributions. Up to ten degrees the quantile is a figure from a table, between whole degrees
-- interpolated on logarithms in 1 / degrees, which is at most 3% too large. Beyond ten it is Cornish and Fisher's
-- expansion around z = 1.96, whose error is below 1e-5 there.
create or replace macro internal.t_quantile(degrees) as
case
    when degrees < 1 then null
    when degrees <= 10
    then list_transform(
        [[
            12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836,
            2.446911851, 2.364624252, 2.306004135, 2.262157163, 2.228138852
        ]],
        lambda known: exp(
            ln(known[cast(floor(degrees) as bigint)]) * (floor(degrees) * (floor(degrees) + 1) / degrees - floor(degrees))
            + ln(known[least(10, cast(floor(degrees) as bigint) + 1)])
            * (1 + floor(degrees) - floor(degrees) * (floor(degrees) + 1) / degrees)
        )
    )[1]
    else 1.959963984540054
        + 2.372271230298562 / degrees
        + 2.8224986157396112 / degrees ** 2
        + 2.555849679507722 / degrees ** 3
        + 1.5895340533938225 / degrees ** 4
end;

comment on macro internal.t_quantile is 'The 97.5% quantile of Student''s t distribution with the given degrees of freedom, to five digits if they are whole. NULL below one degree.';

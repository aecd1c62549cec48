-- DuckDB has no distributions. For whole degrees of freedom the probability is a finite sum (Abramowitz and Stegun,
-- 26.7.3 and 26.7.4), here by the logarithms of its terms. Beyond 2,000 degrees those of 2,000 are taken, whose tails
-- are
-- longer by a hair: the probability is at most 4% of itself too large at 1e-4.
create or replace macro internal.t_tail(t, degrees) as
case
    when degrees < 1 or t is null then null
    else list_transform(
        [{'nu': cast(least(2000, degrees) as bigint)}],
        lambda given: list_transform(
            [{'nu': given.nu, 'theta': atan(abs(t) / sqrt(given.nu))}],
            lambda point: greatest(0, least(1, 1 - case
                when point.nu = 1 then 2 / pi() * point.theta
                when point.nu % 2 = 0
                then sin(point.theta) * list_sum(list_transform(
                    range(0, point.nu // 2),
                    lambda k: exp(
                        lgamma(k + 0.5) - lgamma(k + 1) - ln(pi()) / 2
                        + case when k = 0 then 0 else 2 * k * ln(greatest(cos(point.theta), 1e-300)) end
                    )
                ))
                else 2 / pi() * (point.theta + sin(point.theta) * list_sum(list_transform(
                    range(0, (point.nu - 1) // 2),
                    lambda k: exp(
                        lgamma(k + 1) - lgamma(k + 1.5) + ln(pi()) / 2 - ln(2)
                        + (2 * k + 1) * ln(greatest(cos(point.theta), 1e-300))
                    )
                )))
            end))
        )[1]
    )[1]
end;

comment on macro internal.t_tail is 'The probability that Student''s t with the given degrees of freedom lies at least as far from 0 as t, on either side. Beyond 2,000 degrees that of 2,000. NULL below one degree.';

-- The interval of a mean of scores. At a mean of 0 or 1 an end is exactly that, not a rounding away from it.
create or replace macro internal.mean_interval(mean, is_binary, samples, effective_samples, standard_error, clusters) as
case
    when mean is null then null
    when is_binary
    then list_transform(
        [
            1.959963984540054 ** 2 / effective_samples
            * coalesce(internal.t_quantile(clusters - 1) / internal.t_quantile(samples - 1), 1) ** 2
        ],
        lambda share: list_transform(
            [{
                'center': (mean + share / 2) / (1 + share),
                'half': sqrt(share * (mean * (1 - mean) + share / 4)) / (1 + share)
            }],
            lambda wilson: {
                'kind': 'wilson',
                'low': cast(greatest(0, least(mean, wilson.center - wilson.half)) as double),
                'high': cast(least(1, greatest(mean, wilson.center + wilson.half)) as double)
            }
        )[1]
    )[1]
    when standard_error is not null
    then {
        'kind': 't',
        'low': cast(greatest(0, mean - internal.t_quantile(clusters - 1) * standard_error) as double),
        'high': cast(least(1, mean + internal.t_quantile(clusters - 1) * standard_error) as double)
    }
end;

comment on macro internal.mean_interval is 'The 95% interval of a mean: {kind, low, high}. For scores of 0 and 1 Wilson''s score interval (1927) with z = 1.96: (mean + z²/2m ± z × sqrt(mean × (1 − mean)/m + z²/4m²)) / (1 + z²/m), m = effective_samples × (t(n − 1) / t(G − 1))² for n samples in G clusters and t the 97.5% quantile (Korn and Graubard 1998); one cluster has m = effective_samples. Otherwise mean ± t(G − 1) × standard_error, cut at 0 and 1. NULL without a mean or, of other scores, without a standard error.';

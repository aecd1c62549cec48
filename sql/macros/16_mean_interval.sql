-- The interval of a mean of scores. At a mean of 0 or 1 an end is exactly that, not a rounding away from it.
create or replace macro internal.mean_interval(
    mean, is_binary, samples, effective_samples, effective_clusters, plain_squares
) as
case
    when mean is null or (effective_clusters < 2 and not is_binary) then null
    else list_transform(
        [case
            when effective_clusters < 2 then 1.959963984540054 ** 2 / effective_clusters
            else internal.t_quantile(effective_clusters - 1) ** 2 / effective_samples
                * case when is_binary then 1.959963984540054 / internal.t_quantile(samples - 1) else 1 end ** 2
                * (plain_squares + 0.25) / (samples * mean * (1 - mean) + 0.25)
        end],
        lambda share: list_transform(
            [{
                'center': (mean + share / 2) / (1 + share),
                'half': sqrt(share * (mean * (1 - mean) + share / 4)) / (1 + share)
            }],
            lambda wilson: {
                'low': cast(greatest(0, least(mean, wilson.center - wilson.half)) as double),
                'high': cast(least(1, greatest(mean, wilson.center + wilson.half)) as double)
            }
        )[1]
    )[1]
end;

comment on macro internal.mean_interval is 'The 95% interval of a mean of scores from 0 to 1: {low, high}. Wilson''s score interval (1927): (mean + z²/2m ± z × sqrt(mean × (1 − mean)/m + z²/4m²)) / (1 + z²/m), z = 1.96. For scores of 0 and 1, m = effective_samples × (t(n − 1) / t(G* − 1))² for n samples in G* effective clusters and t the 97.5% quantile (Korn and Graubard 1998); below two effective clusters m = G*. For other scores, m = effective_samples × (z / t(G* − 1))² × (n × mean × (1 − mean) + 1/4) / (Σ (x − mean)² + 1/4): their own variance in place of mean × (1 − mean), each with one pseudo-observation of 0 or 1 with equal chances. NULL without a mean or, of other scores, below two effective clusters.';

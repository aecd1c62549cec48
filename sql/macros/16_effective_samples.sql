-- plain / clustered variance, Kish's design effect, with the cases in which it is undefined.
create or replace macro internal.effective_samples(samples, clusters, effective_clusters, plain_squares, standard_error) as
case
    when clusters = samples then samples
    when clusters = 1 or plain_squares <= 1e-12 * samples then effective_clusters
    when standard_error = 0 then samples
    else least(samples, plain_squares / samples * clusters / (clusters - 1) / standard_error ** 2)
end;

comment on macro internal.effective_samples is 'Independent samples that n clustered ones are worth: the variance of the samples × G / (G − 1) / standard_error², at most n (Kish''s design effect). n if every cluster has one sample; the effective clusters if there is one cluster, or all samples are equal.';

-- n × plain / clustered squares, Kish's design effect, with the cases in which it is undefined.
create or replace macro internal.effective_samples(samples, clusters, mean, plain_squares, clustered_squares) as
case
    when clusters = samples then samples
    when clusters = 1 or mean in (0, 1) then clusters
    when clustered_squares = 0 then samples
    else least(samples, samples * plain_squares / clustered_squares)
end;

comment on macro internal.effective_samples is 'Independent samples that n clustered ones are worth: n × Σ (x − mean)² / Σ over clusters of (Σ of (x − mean) in the cluster)², at most n (Kish''s design effect). n if every cluster has one sample; the number of clusters if there is one, or the mean is 0 or 1.';

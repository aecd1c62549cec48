-- Grain: one row per judge run × scorer, and one per panel of judge runs.
--
-- `run_ids` is a list of run ids of judges.
-- NULL means undefined, for example without labels, repeats or pairs.
--
-- judge_run_id: the judge's run. NULL for a panel: all given judges of one run, or pair of runs, with a scorer of one
--     name.
-- judge_runs: number of judge runs: 1, or those of the panel.
-- scorer: the scorer of kind verdict.
-- judged_run_id: the judged run; for pairs, of answer a.
-- other_run_id: the run of answer b. NULL without pairs.
-- requests: judging requests.
-- judged_requests: those with a verdict; all below is computed from them.
-- unreadable_requests: those whose answer has no verdict. They are not verdicts: if they are not a random part,
--     raw_share is biased.
-- error_requests: those that failed.
-- missing_requests: those without a score.
-- labelled_requests: judged requests with a label.
-- unknown_labels: judged requests whose label is not a word or number of the scorer.
-- agreement: share of labelled ballots whose verdict and label are the same word (on a scale, number). A ballot is a
--     request; in a panel, all its requests on one answer in one order.
-- agreement_low: lower end of its 95% interval; Wilson's, with the effective number of ballots if prompts repeat.
-- agreement_high: upper end.
-- kappa: agreement beyond chance, Cohen's kappa (1960): (agreement − expected) / (1 − expected), from labelled ballots.
--     NULL if all labels are equal, as any judge has 0 then.
-- kappa_error: its standard error: the variance of Fleiss, Cohen and Everitt (1969) × G / (G − 1), G prompts; with
--     repeats, its form clustered by prompt.
-- kappa_low: lower end of the 95% interval, kappa ± t × kappa_error. NULL for fewer than five prompts or no variance,
--     as at 1.
-- kappa_high: upper end.
-- weighted_kappa: Cohen's weighted kappa (1968) with weights 1 − (verdict − label)². NULL unless verdicts are numbers
--     of a scale.
-- weighted_kappa_error: its standard error, as kappa_error.
-- weighted_kappa_low: lower end of its 95% interval.
-- weighted_kappa_high: upper end.
-- sensitivity: of the ballots labelled 0.5 or more, the share with a verdict of 0.5 or more.
-- sensitivity_low: lower end of its 95% interval, as agreement_low.
-- sensitivity_high: upper end.
-- specificity: of the ballots labelled below 0.5, the share with a verdict below 0.5.
-- specificity_low: lower end of its 95% interval, as agreement_low.
-- specificity_high: upper end.
-- raw_share: mean verdict over all ballots, 0 to 1; for pairs, how often answer a wins, ties counting half.
-- raw_share_low: lower end of its 95% interval: Wilson's for verdicts of 0 and 1, otherwise t. It leaves out the
--     judge's errors.
-- raw_share_high: upper end.
-- corrected_share: raw_share + mean of label − verdict over labelled ballots: prediction-powered inference
--     (Angelopoulos et al. 2023). Right if the labelled answers are a random subset of the judged ones; if people
--     labelled hard or suspicious answers, it is biased.
-- corrected_share_error: its standard error, clustered by prompt. Without repeats its square is var(verdict) / N +
--     var(label − verdict) / n + 2 cov(verdict, label − verdict) / N, of N ballots with n labels, which are among the
--     N.
-- corrected_share_low: lower end of its 95% interval; see measure_judges. NULL for fewer than five labelled prompts.
-- corrected_share_high: upper end.
-- flip_share: of the answers with at least two verdicts (for pairs: in one order), the share whose verdicts differ.
-- flip_share_low: lower end of its 95% interval, as agreement_low.
-- flip_share_high: upper end.
-- position_bias: of the pairs judged in both orders, the share whose verdicts contradict each other in favour of the
--     answer shown first − the share in favour of the one shown second. A tie in one order counts half. 0 for no bias.
-- position_bias_low: lower end of its 95% interval, t clustered by prompt. NULL for fewer than five prompts.
-- position_bias_high: upper end.
-- consistent_share: share of those pairs with the same winner, or a tie, in both orders.
-- consistent_share_low: lower end of its 95% interval, as agreement_low.
-- consistent_share_high: upper end.
-- length_bias: of the verdicts on answers of different lengths in characters, the share for the longer − the share for
--     the shorter. Longer answers may be better: it is a bias only as far as people do not agree.
-- length_bias_low: lower end of its 95% interval, as position_bias_low.
-- length_bias_high: upper end.
-- repeated_samples: judged answers (for pairs: in one order) with at least two verdicts.
-- nominal_alpha: Krippendorff's alpha (2004) of repeated verdicts as unordered words: 1 for equal verdicts, 0 for
--     chance. NULL without repeats, or if all verdicts are equal.
-- interval_alpha: alpha of their values, with squared differences. NULL unless verdicts are numbers of a scale.
create or replace macro main.audit_judge(run_ids) as table
with

count_requests as (
    select
        judge_index,
        any_value(judge_run_id) as judge_run_id,
        any_value(judge_runs) as judge_runs,
        any_value(scorer) as scorer,
        any_value(judged_run_id) as judged_run_id,
        any_value(other_run_id) as other_run_id,
        count(*) as requests,
        count(*) filter (status = 'judged') as judged_requests,
        count(*) filter (status = 'unreadable') as unreadable_requests,
        count(*) filter (status = 'error') as error_requests,
        count(*) filter (status = 'missing') as missing_requests,
        count(label_value) filter (status = 'judged') as labelled_requests,
        count(label) filter (status = 'judged' and label_value is null) as unknown_labels
    from internal.list_judgements(run_ids)
    group by judge_index
),

line_up_measures as (
    select
        judge_index,
        max(value) filter (measure = 'agreement') as agreement,
        max(low) filter (measure = 'agreement') as agreement_low,
        max(high) filter (measure = 'agreement') as agreement_high,
        max(value) filter (measure = 'kappa') as kappa,
        max(standard_error) filter (measure = 'kappa') as kappa_error,
        max(low) filter (measure = 'kappa') as kappa_low,
        max(high) filter (measure = 'kappa') as kappa_high,
        max(value) filter (measure = 'weighted_kappa') as weighted_kappa,
        max(standard_error) filter (measure = 'weighted_kappa') as weighted_kappa_error,
        max(low) filter (measure = 'weighted_kappa') as weighted_kappa_low,
        max(high) filter (measure = 'weighted_kappa') as weighted_kappa_high,
        max(value) filter (measure = 'sensitivity') as sensitivity,
        max(low) filter (measure = 'sensitivity') as sensitivity_low,
        max(high) filter (measure = 'sensitivity') as sensitivity_high,
        max(value) filter (measure = 'specificity') as specificity,
        max(low) filter (measure = 'specificity') as specificity_low,
        max(high) filter (measure = 'specificity') as specificity_high,
        max(value) filter (measure = 'raw_share') as raw_share,
        max(low) filter (measure = 'raw_share') as raw_share_low,
        max(high) filter (measure = 'raw_share') as raw_share_high,
        max(value) filter (measure = 'corrected_share') as corrected_share,
        max(standard_error) filter (measure = 'corrected_share') as corrected_share_error,
        max(low) filter (measure = 'corrected_share') as corrected_share_low,
        max(high) filter (measure = 'corrected_share') as corrected_share_high,
        max(value) filter (measure = 'flip_share') as flip_share,
        max(low) filter (measure = 'flip_share') as flip_share_low,
        max(high) filter (measure = 'flip_share') as flip_share_high,
        max(value) filter (measure = 'position_bias') as position_bias,
        max(low) filter (measure = 'position_bias') as position_bias_low,
        max(high) filter (measure = 'position_bias') as position_bias_high,
        max(value) filter (measure = 'consistent_share') as consistent_share,
        max(low) filter (measure = 'consistent_share') as consistent_share_low,
        max(high) filter (measure = 'consistent_share') as consistent_share_high,
        max(value) filter (measure = 'length_bias') as length_bias,
        max(low) filter (measure = 'length_bias') as length_bias_low,
        max(high) filter (measure = 'length_bias') as length_bias_high
    from internal.measure_judges(run_ids)
    group by judge_index
),

join_measures as (
    select
        count_requests.* exclude (judge_index),
        line_up_measures.* exclude (judge_index),
        rate_reliability.repeated as repeated_samples,
        rate_reliability.nominal_alpha,
        rate_reliability.interval_alpha
    from count_requests
    left join line_up_measures using (judge_index)
    left join internal.rate_reliability(run_ids) as rate_reliability using (judge_index)
    order by judge_index
)

select * from join_measures;

comment on macro table main.audit_judge is 'audit_judge(run_ids), a list of run ids of judges: one row per judge run and one per panel, with agreement with labels, kappa, sensitivity and specificity, the share of good answers corrected for the judge''s errors, reliability over repeats, and biases of pairs.';

-- Grain: one row per judge or panel of list_judgements.
--
-- Krippendorff's alpha (2004): 1 − observed / expected disagreement, over the verdicts on answers with at least two.
-- The raters are a judge's repeats; in a panel the repeats of all its judges.
--
-- judge_index: as in list_judgements.
-- repeated: judged answers with at least two verdicts; for pairs each order is one.
-- nominal_alpha: alpha of the words. NULL if all verdicts are equal or nothing is repeated.
-- interval_alpha: alpha of the values, disagreement being (difference of values)². NULL without a scale, too.
create or replace macro internal.rate_reliability(run_ids) as table
with

count_words as (
    select
        judge_index,
        shown,
        category,
        any_value(has_scale) as has_scale,
        count(*) as votes,
        sum(value) as total,
        sum(value ** 2) as squares
    from internal.list_judgements(run_ids)
    where status = 'judged'
    group by judge_index, shown, category
    qualify sum(votes) over (partition by judge_index, shown) > 1
),

sum_answers as (
    select
        judge_index,
        shown,
        sum(votes) as raters,
        (raters ** 2 - sum(votes ** 2)) / (raters - 1) as word_gap,
        2 * (raters * sum(squares) - sum(total) ** 2) / (raters - 1) as value_gap
    from count_words
    group by judge_index, shown
),

add_answers as (
    select judge_index, count(*) as repeated, sum(word_gap) as word_gap, sum(value_gap) as value_gap
    from sum_answers
    group by judge_index
),

sum_words as (
    select
        judge_index,
        category,
        any_value(has_scale) as has_scale,
        sum(votes) as votes,
        sum(total) as total,
        sum(squares) as squares
    from count_words
    group by judge_index, category
),

sum_judges as (
    select
        judge_index,
        any_value(has_scale) as has_scale,
        sum(votes) as verdicts,
        count(*) > 1 as has_varied_words,
        verdicts ** 2 - sum(votes ** 2) as word_spread,
        2 * (verdicts * sum(squares) - sum(total) ** 2) as value_spread
    from sum_words
    group by judge_index
),

compare_gaps as (
    select
        judge_index,
        repeated,
        case when has_varied_words then 1 - (verdicts - 1) * word_gap / word_spread end as nominal_alpha,
        case
            when has_varied_words and has_scale then 1 - (verdicts - 1) * value_gap / value_spread
        end as interval_alpha
    from add_answers
    join sum_judges using (judge_index)
)

select * from compare_gaps;

comment on macro table internal.rate_reliability is 'rate_reliability(run_ids), a list of run ids of judges: one row per judge or panel with repeated verdicts, with Krippendorff''s alpha. Input of audit_judge.';

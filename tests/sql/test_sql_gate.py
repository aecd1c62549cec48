"""The gate's judgement: which limits break, what is left open, and what cannot be compared at all."""

import json
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from row_kit import give_run_metric

from assayline.comparison.gate import ANOTHER_SESSION, _check_drafts, judge_run_against, judge_speed
from assayline.comparison.queries import Side
from assayline.errors import ComparisonError, SpecError
from assayline.report.document import Sample
from assayline.report.run.comparison import describe_comparison, read_comparison, say_verdict
from assayline.spec.criteria import GateSpec
from assayline.stats.repeats import compare_repeats
from assayline.stats.worse import NIGHTS, SHOWN
from assayline.store.scoring import define_scorer
from assayline.words import SPACE

FIRST = datetime(2026, 1, 1)
PROMPTS = 40
EXACT = {"scorer": "exact_match", "definition": define_scorer("exact_match")}
ANSWER = {"text": "a", "arrived_at_s": 0.0, "finished_at_s": 1.0, "output_tokens": 3, "finish_reason": "stop"}
CUT = {"finish_reason": "length", "output_tokens": 16}
WARM = ({"event": "opened"}, {"event": "warmed_up"})
ALL = range(PROMPTS)


def given_run(
    store, run_id, wrong=(), day=0, *, prompts=ALL, name="p", targets="right", repeats=1, answer=None, failed=(),
    scorers=(EXACT,), events=WARM, prompts_spec=None, rendered="say {}", **run,
):  # fmt: skip
    """A run of a configuration whose answers are right, except to the prompts that are wrong or failed."""
    spec = {"prompts": prompts_spec or {}, "sampling": {}, "engine": {"args": {}}}
    began = {"started_at": FIRST + timedelta(days=day), "expected_requests": len(prompts)}
    store.given("runs", {"spec_json": json.dumps(spec), "config_id": "same", **began, **run}, run_id=run_id)
    store.given("engine_events", *events, run_id=run_id)
    cells = [(n, repeat, {"prompt_id": f"{name}{n:02}"}) for n in prompts for repeat in range(repeats)]
    asks = [json.dumps([{"role": "user", "content": rendered.format(n)}]) for n, *_ in cells]
    rows = (
        {**key, "source_row": n, "target": targets, "messages_json": ask}
        for (n, repeat, key), ask in zip(cells, asks, strict=True)
        if not repeat
    )
    store.given("prompts", *rows, run_id=run_id)
    ids = [{"request_id": f"{n:02}-{repeat}"} for n, repeat, _ in cells]
    asked = {"sampling_json": '{"max_tokens": 16}'}
    requests = (
        {**one, **key, **asked, "repeat_index": repeat, "rendered": rendered.format(n)}
        for one, (n, repeat, key) in zip(ids, cells, strict=True)
    )
    store.given("requests", *requests, run_id=run_id)
    kinds = ["timeout" if n in failed else None for n, *_ in cells]
    known = ANSWER | (answer or {})
    answers = ({**known, **one, "error_kind": kind} for one, kind in zip(ids, kinds, strict=True))
    store.given("completions", *answers, run_id=run_id)
    for ordinal, scorer in enumerate(scorers):
        store.given("scorers", {"ordinal": ordinal, **scorer}, run_id=run_id)
        scores = (
            {**key, "scorer": scorer["scorer"], "repeat_index": repeat, "error_kind": kind,
             "value": float(n not in wrong and not kind)}
            for (n, repeat, key), kind in zip(cells, kinds, strict=True)
        )  # fmt: skip
        store.given("scores", *scores, run_id=run_id)


def judge(store, new, old, nights=1, **limits):
    return judge_run_against(store.connection, new, old, GateSpec(**{"max_slowdown": {}, **limits}), nights)


def verdicts(report):
    return {check.check: check.verdict for check in report.checks}


@pytest.fixture
def old(store):
    """A run that is there before the test, and equals others of `given_run`."""
    given_run(store, "old")
    return "old"


@pytest.fixture
def three(store, old):
    """Two of the same that start within a second, and one that is half wrong; their ids sort the other way round."""
    second = timedelta(milliseconds=1)
    given_run(store, "new", started_at=FIRST + second)
    given_run(store, "bad", range(20, 40), started_at=FIRST + 2 * second, config_id="other")
    return old, "new", "bad"


def test_judge_run_against_passes_the_same_again_if_there_are_enough_prompts(store, three):
    report = judge(store, "new", "old", max_accuracy_drop=0.1)
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "pass"}
    assert report.sentence.endswith("is within its limits against old.")


def test_judge_run_against_is_inconclusive_on_what_forty_equal_answers_cannot_show(store, three):
    report = judge(store, "new", "old")
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "inconclusive"}
    assert report.headline.endswith(" fails no limit against old. Inconclusive: accuracy, exact_match.")
    told = "A drop of 23 points would be found with 80% power, one of 2 points (twice the limit) with about 5,100"
    assert report.checks[1].words.endswith(f"{told} prompts.")


def test_a_clear_drop_fails_with_its_figures(store, three):
    report = judge(store, "bad", "old")
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "fail"}
    for figure in ("from 100% to 50%", "40 prompts", "−50.0 points", "20 worse", "limit is a drop of 1 point"):
        assert figure in report.sentence
    assert judge(store, "old", "bad").failed == [], "better is not worse"
    assert judge(store, "bad", "old", max_accuracy_drop=0.5).verdict == "inconclusive", "the limit is not beyond it"


def test_two_of_forty_may_be_chance(store, old):
    given_run(store, "new", (0, 1), 1, config_id="other")
    for limit, verdict in ((0.01, "inconclusive"), (0.2, "pass")):
        report = judge(store, "new", old, max_accuracy_drop=limit)
        assert verdicts(report)["accuracy, exact_match"] == verdict, limit


def test_errors_have_a_limit_of_their_own(store, old):
    given_run(store, "new", failed=range(36, 40), day=1)
    report = judge(store, "new", old)
    assert verdicts(report)["errors"] == "fail"
    assert "Errors are 10% of the answers, vs 0% in the baseline; the limit is 5%." in report.sentence
    assert "over 40 prompts" in report.checks[1].words and "4 pairs have an error" in report.checks[1].words
    assert judge(store, "new", old, max_error_share=0.1).failed == []


def test_gate_limits_truncated_answers_and_names_their_change(store, old):
    given_run(store, "new", range(20, 40), 1, answer=CUT)
    report = judge(store, "new", old, max_truncated_share=0.3)
    assert (verdicts(report)["truncated"], judge(store, old, "new", max_truncated_share=0.3).failed) == ("fail", [])
    assert "cut off by max_tokens are 100% of the answers, vs 0% in the baseline; the limit is 30%." in report.sentence
    assert "Truncated by max_tokens: 0% → 100%." in report.sentence
    assert "truncated" not in verdicts(judge(store, "new", old)), "it has a limit only if one is set"


def test_gate_limits_the_acceptance_of_drafts(store, three):
    assert "draft acceptance" not in verdicts(judge(store, "new", "old"))
    report = judge(store, "new", "old", min_draft_acceptance=0.3)
    assert verdicts(report)["draft acceptance"] == "fail", "a draft that is not there is dead, too"
    assert "The run has no counts of draft tokens, and at least 30% of them must be accepted." in report.sentence


@pytest.mark.parametrize(("share", "verdict"), [(0.29, "fail"), (0.3, "pass")])
def test_a_run_fails_if_fewer_drafts_are_accepted_than_the_limit(share, verdict):
    side = Side("run", "completed", "{}", None, None, [], 0.0, 0.0, share)
    check = _check_drafts(side, replace(side, draft_acceptance=0.5), 0.3)
    assert (check.verdict, check.words) == (
        verdict,
        f"{share:.0%} of the draft tokens were accepted, vs 50% in the baseline; the limit is 30%.",
    )


def test_accuracy_is_inconclusive_without_scores(store):
    for day, run_id in enumerate(("old", "new")):
        given_run(store, run_id, day=day, scorers=(), targets=None)
    report = judge(store, "new", "old")
    assert (verdicts(report)["errors"], report.verdict) == ("pass", "inconclusive")
    assert report.checks[1].words == "Neither run has scores."


def test_other_prompts_are_refused(store, old):
    given_run(store, "new", prompts=range(30), day=1)
    sentence = "different prompts: 30 in both, 0 only in the first and 10 only in the second, an overlap of 75.0%"
    with pytest.raises(ComparisonError, match=sentence):
        judge(store, "new", old)
    assert "over 30 prompts" in judge(store, "new", old, min_overlap=0.75).checks[1].words


def test_a_scorer_that_one_side_lacks_is_named(store, old):
    given_run(store, "new", day=1, scorers=(EXACT, {"scorer": "contains", "kind": "contains"}))
    assert verdicts(judge(store, "new", old))["accuracy, exact_match"] == "inconclusive"
    with pytest.raises(ComparisonError, match=r"Run old has no scores of 'contains'; it has exact_match\..*score"):
        judge(store, "new", old, scorer="contains")
    with pytest.raises(ComparisonError, match=r"Run new has no scores of 'bleu'; it has exact_match, contains"):
        judge(store, "new", old, scorer="bleu")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arguments_json": '{"ignore_case": true}'}, r"arguments or.* differ\. hint: .*score old --scorer"),
        (
            {"definition": "before"},
            r"the scorer changed between them.* hint: score again with the current scorer: `assayline score new`\.",
        ),
    ],
)
def test_judge_run_against_refuses_scores_of_another_scorer(store, old, change, said):
    given_run(store, "new", day=1, scorers=({**EXACT, **change},))
    with pytest.raises(ComparisonError, match=f"'exact_match' .*{said}"):
        judge(store, "new", old)


@pytest.mark.parametrize("tables", [["scores"], ["scores", "prompts"]])
@pytest.mark.parametrize("side", [0, 1])
def test_judge_run_against_counts_prompts_with_one_score_against_the_run(store, three, tables, side):
    """Count an answer without a score, and a prompt that one of the runs never had."""
    for table in tables:
        store.connection.execute(f"delete from {table} where run_id = ? and prompt_id < 'p02'", [three[side]])
    report = judge(store, "new", "old", max_accuracy_drop=0.1)
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "inconclusive", "unscored": "inconclusive"}
    assert report.checks[-1].words.startswith("2 prompts of 40 have a score of exact_match in one run only")
    assert verdicts(judge(store, "new", "old", max_accuracy_drop=0.2))["unscored"] == "pass"


@pytest.mark.parametrize(
    ("runs", "error", "said"),
    [
        (("left", "old"), ComparisonError, "Run left is running, not completed"),
        (("old", "left"), ComparisonError, "The baseline left is still running"),
        (("old", "old"), ComparisonError, "is its own baseline"),
        (("nobody", "old"), SpecError, "Run nobody is not in the database"),
    ],
)
def test_runs_without_an_end_are_refused(store, old, runs, error, said):
    given_run(store, "left", day=1, state="running")
    with pytest.raises(error, match=said):
        judge(store, *runs)


def given_equal_runs(store, runs):
    """Runs of one day, a minute apart."""
    for minute, run_id in enumerate(runs):
        given_run(store, run_id, started_at=FIRST + timedelta(minutes=minute))
    store.measure()


def given_speeds(store, runs, factor):
    """The later half of the runs is as fast as `factor` says, within 1%."""
    dice = np.random.default_rng(1)
    speeds = {
        run_id: 100 * (factor if place >= len(runs) / 2 else 1) * dice.normal(1, 0.01)
        for place, run_id in enumerate(runs)
    }
    rows = ({"run_id": run, "metric": "output_tokens_per_s", "value": value} for run, value in speeds.items())
    give_run_metric(store.connection, *rows)


def test_speed_needs_repeats(store):
    runs = ["before", "old", "between", "new"]
    given_equal_runs(store, runs)
    given_speeds(store, runs, 0.5)
    report = judge(store, "new", "old", max_slowdown={"output_tokens_per_s": 0.05})
    (check,) = (check for check in report.checks if check.check == "output_tokens_per_s")
    assert check.verdict == "inconclusive" and "there are 1 of the run and 3 of the baseline" in check.words
    assert report.failed == [] and "output tokens/s" in report.headline


def test_repeats_of_both_sides_are_judged(store):
    runs = [f"run-{number}" for number in range(10)]
    given_equal_runs(store, runs)
    for factor, verdict in ((0.85, "fail"), (0.94, "inconclusive"), (1.0, "inconclusive"), (1.2, "inconclusive")):
        given_speeds(store, runs, factor)
        report = judge(store, runs[9], runs[4], max_slowdown={"output_tokens_per_s": 0.05})
        assert verdicts(report)["output_tokens_per_s"] == verdict, factor
        assert report.sentence.endswith(f" {ANOTHER_SESSION}") == (verdict == "fail")
        said = "over 5 and 5 repeats", f"{SHOWN[verdict]}. {ANOTHER_SESSION}", "no interval: too few sessions are known"
        assert all(words in report.checks[-1].words for words in said)


def test_judge_run_against_wants_more_evidence_of_a_nightly_run(store, three):
    limits = {"max_slowdown": {"output_tokens_per_s": 0.05}}
    given_run(store, "few", range(32, 40), 1, config_id="other")
    assert verdicts(judge(store, "few", "old"))["accuracy, exact_match"] == "fail"
    night = judge(store, "few", "old", NIGHTS, **limits)
    assert verdicts(night) == {"errors": "pass", "accuracy, exact_match": "suspect", "output_tokens_per_s": "waiting"}
    assert night.verdict == "suspect"
    told = "but one comparison alone would fail. Suspect: accuracy, exact_match. Not judged yet: output tokens/s."
    assert told in night.sentence and night.sentence.endswith("` shows what changed; the next night confirms it.")
    words = night.checks[1].words
    assert " Worse: row 32, row 33, row 34, row 35, row 36, row 37, row 38, row 39." in words
    assert "p 0.013 at the limit; 8 worse" in words and "not enough for a nightly run, which needs p ≤ 0.0017." in words
    reach = " A drop of 50 points would be found with 80% power, one of 2 points (twice the limit) with about 33,000"
    assert reach in words
    healthy = judge(store, "new", "old", NIGHTS, max_accuracy_drop=0.1, **limits)
    assert healthy.verdict == "pass", "what later nights will judge leaves none open"
    assert verdicts(judge(store, "bad", "old", NIGHTS))["accuracy, exact_match"] == "fail", "on its first night"


def test_judge_run_against_compares_with_the_mean_of_the_baselines_repeats(store, three):
    assert "from 100% (mean of 2 runs) to 50% over 40" in judge(store, "bad", "new").sentence
    assert "from 100% to 50% over 40" in judge(store, "bad", "old").sentence, "it was the first"
    assert "mean of" not in judge(store, "new", "old").checks[1].words
    store.connection.execute("update scorers set definition = 'older' where run_id = 'old'")
    assert "from 100% to 50% over 40" in judge(store, "bad", "new").sentence


def test_a_limit_in_percent_is_inconclusive_if_the_baseline_is_zero():
    sides = [(False, 0.0)] * 5 + [(True, 2.0)] * 5
    rows = [
        {"metric": "e2e_p95_s", "unit": "s", "higher_is_better": False, "is_candidate": side, "value": value}
        for side, value in sides
    ]
    (row,) = compare_repeats(rows, {"e2e_p95_s": 0.1}).values()
    assert row.name_change() == "unclear"
    check = judge_speed("e2e_p95_s", 0.1, row)
    assert check.verdict == "inconclusive"
    assert check.words == "E2E p95 is 0 in the baseline, and a limit in percent has no meaning there."


def test_speed_of_a_resumed_run_is_not_judged(store, old):
    given_run(store, "new", day=1, attempt=2)
    report = judge(store, "new", old, max_slowdown={"output_tokens_per_s": 0.05, "tpot_p50_s": 0.1})
    assert len(report.checks) == 3, "one for all limits on speed"
    told = "run new does not count among the repeats: it was resumed."
    assert report.checks[-1].words == f"output tokens/s, TPOT p50 cannot be judged: {told}"


def test_judge_run_against_compares_two_templates_row_by_row(store):
    asked = {"source": "inline", "columns": {"target": "answer"}}
    old, new = ({"prompts_spec": {**asked, "template": text}, "repeats": 2} for text in ("{{ q }}", "Please {{ q }}"))
    given_run(store, "old", name="o", **old)
    given_run(store, "new", range(20, 40), 1, name="n", config_id="other", rendered="Please say {} what", **new)
    report = judge(store, "new", "old")
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "fail"}
    told = "over 40 prompts (paired by source row: the template differs), by −50.0 points"
    assert told in report.failed[0].words
    given_run(store, "elsewhere", day=2, name="e", targets="x", **new)
    with pytest.raises(ComparisonError, match=r"different prompts: 0 in both.*by prompt 0, by id 0, by row 0\)"):
        judge(store, "elsewhere", "old")
    found = read_comparison(store.connection, "new", "old")
    told = "20 prompts got worse and 0 better, paired by source row: the template differs."
    assert told in say_verdict(found).replace(SPACE, " ")
    blocks = describe_comparison(found).blocks
    shown = [quote.text for one in blocks if isinstance(one, Sample) for quote in one.quotes]
    assert any("Please say 20 what" in one for one in shown), "the answers of both runs stand next to each other"

"""The gate's judgement: which limits break, what is left open, and what cannot be compared at all."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_kit import give_run_metric
from run_kit import FAKE, begin_and_vanish, complete, copy_run, settings_in

from assayline.comparison.gate import ANOTHER_SESSION, GateReport, _check_drafts, judge_run_against, judge_speed
from assayline.comparison.queries import Side
from assayline.errors import ComparisonError, SpecError
from assayline.report.make import make_report
from assayline.run import begin
from assayline.run.rescore import rescore_run
from assayline.settings import Settings
from assayline.spec.criteria import GateSpec
from assayline.spec.evaluation import EvalSpec
from assayline.stats.repeats import compare_repeats
from assayline.stats.worse import NIGHTS, SHOWN
from assayline.store.database import Connection, connect

pytestmark = pytest.mark.slow

ROWS = [{"question": f"say {i}", "answer": str(i)} for i in range(40)]
WRONG_FROM_20 = "{{ messages[0].content }}{% if messages[0].content.split()[1] | int >= 20 %} what{% endif %}"
WRONG_FROM_32 = WRONG_FROM_20.replace("20", "32")
WRONG_AT_TWO = "{{ messages[0].content }}{% if messages[0].content.split()[1] | int < 2 %} what{% endif %}"


@pytest.fixture(scope="module")
def make(make_spec: Any) -> Any:
    """Specs whose answers are right unless the chat template ends in another word.

    In the order given: a first run, which knows no lengths, is else no repeat of the second.
    """

    def build(rows: list[dict[str, Any]] = ROWS, template: str = "{{ messages[0].content }}", **more: Any) -> EvalSpec:
        prompts = {"source": {"kind": "inline", "rows": rows}, "columns": {"target": "answer"}}
        spec: EvalSpec = make_spec(
            engine={**FAKE, "order": "given"}, prompts=prompts, chat={"template": template}, **more
        )
        return spec

    return build


def judge(settings: Settings, new: str, old: str, nights: int = 1, **limits: Any) -> GateReport:
    with connect(settings.database_path, 10) as opened:
        return judge_run_against(opened, new, old, GateSpec(**{"max_slowdown": {}, **limits}), nights)


def verdicts(report: GateReport) -> dict[str, str]:
    return {check.check: check.verdict for check in report.checks}


def run(spec: EvalSpec, settings: Settings) -> str:
    return complete(spec, settings, "never").run_id


@pytest.fixture(scope="module")
def runs(make: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of two runs of the same and of one that is half wrong; a database has the runs before it, too.

    They start within one second, and their ids sort the other way round: what is older is told by the time alone.
    """
    ids = iter(("20260101-000000-test-000c", "20260101-000000-test-000b", "20260101-000000-test-000a"))
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(begin, "new_run_id", lambda name, clock: next(ids))
    found: list[Path] = []
    for spec in (make(), make(), make(template=WRONG_FROM_20)):
        settings = settings_in(tmp_path_factory.mktemp("runs"))
        if found:
            shutil.copytree(found[-1].parents[1], settings.data_dir)
        found.append(settings.run_dir(run(spec, settings)))
    monkeypatch.undo()
    return found


@pytest.fixture
def old(runs: list[Path], settings: Settings) -> str:
    """A run of `make()` that is there before the test."""
    return copy_run(runs[0], settings).name


@pytest.fixture
def two_old(runs: list[Path], settings: Settings) -> list[str]:
    """Both of the same, oldest first."""
    copy_run(runs[1], settings)
    return [folder.name for folder in runs[:2]]


@pytest.fixture
def three_old(runs: list[Path], settings: Settings) -> list[str]:
    """All three."""
    copy_run(runs[2], settings)
    return [folder.name for folder in runs]


def test_judge_run_against_passes_the_same_again_if_there_are_enough_prompts(two_old, settings):
    report = judge(settings, two_old[1], two_old[0], max_accuracy_drop=0.1)
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "pass"}
    assert report.sentence.endswith("is within its limits against " + report.baseline + ".")


def test_judge_run_against_is_inconclusive_on_what_forty_equal_answers_cannot_show(two_old, settings):
    report = judge(settings, two_old[1], two_old[0])
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "inconclusive"}
    assert report.headline.endswith(" fails no limit against " + two_old[0] + ". Inconclusive: accuracy, exact_match.")
    told = "A drop of 23 points would be found with 80% power, one of 2 points (twice the limit) with about 5,100"
    assert report.checks[1].words.endswith(f"{told} prompts.")


def test_a_clear_drop_fails_with_its_figures(three_old, settings):
    old, _, new = three_old
    report = judge(settings, new, old)
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "fail"}
    for figure in (
        "from 100% to 50%",
        "40 prompts",
        "−50.0 points",
        "20 worse",
        "limit is a drop of 1 point",
    ):
        assert figure in report.sentence
    assert judge(settings, old, new).failed == [], "better is not worse"
    exact = judge(settings, new, old, max_accuracy_drop=0.5)
    assert exact.verdict == "inconclusive", "exactly the limit is not beyond it"


def test_two_of_forty_may_be_chance(make, old, settings):
    new = run(make(template=WRONG_AT_TWO), settings)
    for limit, verdict in ((0.01, "inconclusive"), (0.2, "pass")):
        report = judge(settings, new, old, max_accuracy_drop=limit)
        assert verdicts(report)["accuracy, exact_match"] == verdict, limit


def test_errors_have_a_limit_of_their_own(make, old, settings):
    rows = [*ROWS[:36], *({"question": f"{'long ' * 5000}{i}", "answer": "1"} for i in range(4))]
    new = run(make(rows), settings)
    report = judge(settings, new, old, min_overlap=0.8)
    assert verdicts(report)["errors"] == "fail"
    assert "Errors are 10% of the answers, vs 0% in the baseline; the limit is 5%." in report.sentence
    assert judge(settings, new, old, min_overlap=0.8, max_error_share=0.1).failed == []


def test_gate_limits_truncated_answers_and_names_their_change(make, old, settings):
    cut = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    new = run(make(template=WRONG_FROM_20, sampling=cut), settings)
    report = judge(settings, new, old, max_truncated_share=0.3)
    assert (verdicts(report)["truncated"], judge(settings, old, new, max_truncated_share=0.3).failed) == ("fail", [])
    assert "cut off by max_tokens are 100% of the answers, vs 0% in the baseline; the limit is 30%." in (
        report.sentence
    )
    assert "Truncated by max_tokens: 0% → 100%." in report.sentence
    assert "truncated" not in verdicts(judge(settings, new, old)), "it has a limit only if one is set"


def test_gate_limits_the_acceptance_of_drafts(two_old, settings):
    assert "draft acceptance" not in verdicts(judge(settings, *two_old))
    report = judge(settings, *two_old, min_draft_acceptance=0.3)
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


def test_accuracy_is_inconclusive_without_targets(make, settings):
    rows = [{"question": f"say {i}", "answer": None} for i in range(8)]
    report = judge(settings, run(make(rows), settings), run(make(rows), settings))
    assert verdicts(report)["errors"] == "pass"
    assert report.verdict == "inconclusive"


def test_other_prompts_are_refused(make, old, settings):
    new = run(make(ROWS[:30]), settings)
    sentence = "different prompts: 30 in both, 0 only in the first and 10 only in the second, an overlap of 75.0%"
    with pytest.raises(ComparisonError, match=sentence):
        judge(settings, new, old)
    report = judge(settings, new, old, min_overlap=0.75)
    assert "over 30 prompts" in report.checks[1].words


def test_a_scorer_that_one_side_lacks_is_named(make, old, settings):
    both = [{"kind": "exact_match"}, {"kind": "contains"}]
    new = run(make(scorers=both), settings)
    assert verdicts(judge(settings, new, old))["accuracy, exact_match"] == "inconclusive"
    with pytest.raises(ComparisonError, match=rf"Run {old} has no scores of 'contains'; it has exact_match\..*score"):
        judge(settings, new, old, scorer="contains")
    with pytest.raises(ComparisonError, match=rf"Run {new} has no scores of 'bleu'; it has exact_match, contains"):
        judge(settings, new, old, scorer="bleu")


def test_a_scorer_with_other_arguments_is_another_scorer(make, old, settings):
    new = run(make(scorers=[{"kind": "exact_match", "ignore_case": True}]), settings)
    with pytest.raises(
        ComparisonError, match=rf"'exact_match' .* arguments or.* differ\. hint: .*score {old} --scorer"
    ):
        judge(settings, new, old)


def test_judge_run_against_refuses_scores_that_an_older_definition_gave(two_old, settings):
    old, new = two_old
    with connect(settings.database_path, 10) as connection:
        connection.execute("update scorers set definition = 'before' where run_id = ?", [old])
    said = rf"the scorer changed between them.* hint: score again with the current scorer: `assayline score {old}`\."
    with pytest.raises(ComparisonError, match=said):
        judge(settings, new, old)
    rescore_run(settings.run_dir(old), settings, [])
    assert verdicts(judge(settings, new, old, max_accuracy_drop=0.1))["accuracy, exact_match"] == "pass"


def test_judge_run_against_tells_of_pairs_with_an_error(two_old, settings):
    old, new = two_old
    with connect(settings.database_path, 10) as connection:
        first = "prompt_id = (select min(prompt_id) from scores)"
        connection.execute(f"update scores set error_kind = 'timeout' where run_id = ? and {first}", [old])
    (words,) = (check.words for check in judge(settings, new, old).checks if check.check != "errors")
    assert "over 40 prompts" in words and "1 pair has an error" in words


@pytest.mark.parametrize("tables", [["scores"], ["scores", "prompts"]])
@pytest.mark.parametrize("side", [0, 1])
def test_judge_run_against_counts_prompts_with_one_score_against_the_run(two_old, settings, tables, side):
    """Count an answer without a score, and a prompt that one of the runs never had."""
    old, new = two_old
    with connect(settings.database_path, 10) as connection:
        some = "prompt_id in (select prompt_id from prompts where run_id = ? order by prompt_id limit 2)"
        for table in tables:
            connection.execute(f"delete from {table} where run_id = ? and {some}", [two_old[side], two_old[1 - side]])
    report = judge(settings, new, old, max_accuracy_drop=0.1)
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "inconclusive", "unscored": "inconclusive"}
    assert report.checks[-1].words.startswith("2 prompts of 40 have a score of exact_match in one run only")
    assert verdicts(judge(settings, new, old, max_accuracy_drop=0.2))["unscored"] == "pass"


def test_runs_without_an_end_are_refused(make, old, settings):
    done = old
    left = begin_and_vanish(make(name="left"), settings, 3).run_id
    with pytest.raises(ComparisonError, match=f"Run {left} is running, not completed"):
        judge(settings, left, done)
    with pytest.raises(ComparisonError, match=f"The baseline {left} is still running"):
        judge(settings, done, left)
    with pytest.raises(ComparisonError, match="is its own baseline"):
        judge(settings, done, done)
    with pytest.raises(SpecError, match="Run nobody is not in the database"):
        judge(settings, "nobody", done)


def test_speed_needs_repeats(two_old, settings):
    old, new = two_old
    limits = GateSpec(max_slowdown={"output_tokens_per_s": 0.05})
    with connect(settings.database_path, 10) as opened:
        shadow_speed(opened, [*repeat(opened, old, 2), *repeat(opened, new, 2)], 0.5)
        report = judge_run_against(opened, new, old, limits)
    (check,) = (check for check in report.checks if check.check == "output_tokens_per_s")
    assert check.verdict == "inconclusive" and "there are 1 of the run and 3 of the baseline" in check.words
    assert report.failed == [] and "output tokens/s" in report.headline


def test_repeats_of_both_sides_are_judged(two_old, settings):
    old, new = two_old
    limits = GateSpec(max_slowdown={"output_tokens_per_s": 0.05})
    with connect(settings.database_path, 10) as opened:
        runs = [*repeat(opened, old, 5), *repeat(opened, new, 5)]
        for factor, verdict in ((0.85, "fail"), (0.94, "inconclusive"), (1.0, "inconclusive"), (1.2, "inconclusive")):
            shadow_speed(opened, runs, factor)
            report = judge_run_against(opened, new, old, limits)
            assert verdicts(report)["output_tokens_per_s"] == verdict, factor
            assert "over 5 and 5 repeats" in report.checks[-1].words
            assert report.sentence.endswith(f" {ANOTHER_SESSION}") == (verdict == "fail")
            assert f"{SHOWN[verdict]}. {ANOTHER_SESSION}" in report.checks[-1].words
            assert "no interval: too few sessions are known" in report.checks[-1].words


def test_judge_run_against_wants_more_evidence_of_a_nightly_run(make, three_old, settings):
    old, same, worst = three_old
    new = run(make(template=WRONG_FROM_32), settings)
    assert verdicts(judge(settings, new, old))["accuracy, exact_match"] == "fail"
    night = judge(settings, new, old, NIGHTS, max_slowdown={"output_tokens_per_s": 0.05})
    assert verdicts(night) == {"errors": "pass", "accuracy, exact_match": "suspect", "output_tokens_per_s": "waiting"}
    assert night.verdict == "suspect"
    told = "but one comparison alone would fail. Suspect: accuracy, exact_match. Not judged yet: output tokens/s."
    assert told in night.sentence and night.sentence.endswith("` shows what changed; the next night confirms it.")
    words = night.checks[1].words
    assert " Worse: row 32, row 33, row 34, row 35, row 36, row 37, row 38, row 39." in words
    healthy = judge(settings, same, old, NIGHTS, max_accuracy_drop=0.1, max_slowdown={"output_tokens_per_s": 0.05})
    assert healthy.verdict == "pass", "what later nights will judge leaves none open"
    assert "p 0.013 at the limit; 8 worse" in words and "not enough for a nightly run, which needs p ≤ 0.0017." in words
    reach = " A drop of 50 points would be found with 80% power, one of 2 points (twice the limit) with about 33,000"
    assert reach in words
    assert verdicts(judge(settings, worst, old, NIGHTS))["accuracy, exact_match"] == "fail", "on its first night"


def test_judge_run_against_compares_with_the_mean_of_the_baselines_repeats(three_old, settings):
    first, second, bad = three_old
    assert "from 100% (mean of 2 runs) to 50% over 40" in judge(settings, bad, second).sentence
    assert "from 100% to 50% over 40" in judge(settings, bad, first).sentence, "it was the first"
    assert "mean of" not in judge(settings, second, first).checks[1].words
    with connect(settings.database_path, 10) as opened:
        opened.execute("update scorers set definition = 'older' where run_id = ?", [first])
    assert "from 100% to 50% over 40" in judge(settings, bad, second).sentence


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


def repeat(connection: Connection, run_id: str, repeats: int) -> list[str]:
    """Insert that many equal runs, a millisecond apart, of which this is the last."""
    ids = [f"{run_id}-{number}" for number in range(repeats - 1)]
    for number, copy in enumerate(ids):
        for table in ("runs", "engine_events", "prompts", "requests"):
            earlier = f", started_at - to_milliseconds({repeats - 1 - number}) as started_at" if table == "runs" else ""
            connection.execute(
                f"insert into {table} by name select * replace (? as run_id{earlier}) from {table} where run_id = ?",
                [copy, run_id],
            )
    return [*ids, run_id]


def shadow_speed(connection: Connection, runs: list[str], factor: float) -> None:
    """The later half of the runs is as fast as `factor` says, within 1%, whatever their engine did."""
    dice = np.random.default_rng(1)
    give_run_metric(
        connection,
        *(
            {
                "run_id": run_id, "metric": "output_tokens_per_s", "unit": "tokens/s",
                "value": 100 * (factor if i >= len(runs) / 2 else 1) * dice.normal(1, 0.01),
            }
            for i, run_id in enumerate(runs)
        ),
    )  # fmt: skip


def test_speed_of_a_resumed_run_is_not_judged(make, old, settings):
    begin_and_vanish(make(), settings, 3)
    resumed = complete(make(), settings).run_id
    limits = {"output_tokens_per_s": 0.05, "tpot_p50_s": 0.1}
    report = judge(settings, resumed, old, max_slowdown=limits)
    assert len(report.checks) == 3, "one for all limits on speed"
    why = "it was resumed on another device or version: fake, context 4096 tokens."
    told = f"run {resumed} does not count among the repeats: {why}"
    assert report.checks[-1].words == f"output tokens/s, TPOT p50 cannot be judged: {told}"


def test_judge_run_against_compares_two_templates_row_by_row(make_spec, settings):
    rows = [{"question": f"say {i}", "answer": str(i), "wrong": "" if i < 20 else " what"} for i in range(40)]

    def ask(template: str, **prompts: Any) -> str:
        asked = {"columns": {"target": "answer"}, "template": template, "repeats": 2, **prompts}
        asked = {"source": {"kind": "inline", "rows": rows}, **asked}
        plain = {"template": "{{ messages[0].content }}"}
        return run(make_spec(engine={**FAKE, "order": "given"}, prompts=asked, chat=plain), settings)

    old, new = ask("{{ question }}"), ask("Please {{ question }}{{ wrong }}")
    report = judge(settings, new, old)
    assert verdicts(report) == {"errors": "pass", "accuracy, exact_match": "fail"}
    told = "over 40 prompts (paired by source row: the template differs), by −50.0 points"
    assert told in report.failed[0].words
    other = ask("{{ question }}?", source={"kind": "inline", "rows": [{**row, "answer": "x"} for row in rows]})
    with pytest.raises(ComparisonError, match=r"different prompts: 0 in both.*by prompt 0, by id 0, by row 0\)"):
        judge(settings, other, old)

    written = make_report(settings, new, old)
    page = written.markdown.read_text()
    assert "20 prompts got worse and 0 better, paired by source row: the template differs." in page
    assert "Please say 20 what" in page, "the answers of both runs stand beside each other"

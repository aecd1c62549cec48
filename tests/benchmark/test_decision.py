"""The decision of a suite: what counts, at which level, and the weighted mean."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import norm

from assayline.benchmark.campaign import Cell
from assayline.benchmark.decision import Decision, JudgedCell, check_repeats, decide
from assayline.comparison.gate import Check, GateReport, Verdict, judge_speed
from assayline.errors import SpecError
from assayline.spec.criteria import GateSpec
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import override_spec, parse_spec
from assayline.spec.identity import canonical_json
from assayline.spec.suite import Tier
from assayline.stats.repeats import compare_repeats
from assayline.stats.worse import NIGHTS, Comparison

SPEC = {"model": "m", "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "1"}]}}}
MEAN = 0.7


def cell_of(name: str, spec: EvalSpec, **more: Any) -> Cell:
    spec_json = canonical_json(spec)
    return Cell(
        task=name, variant="models/m", label=f"{name} · m", config_id="", baseline="stable", spec_json=spec_json, **more
    )


def cell(
    name: str, tier: Tier = "critical", *, weight: float = 1, limit: float = 0.01, speed: float | None = None
) -> Cell:
    slowdown = {} if speed is None else {"output_tokens_per_s": speed}
    spec = parse_spec({**SPEC, "gate": {"max_accuracy_drop": limit, "max_slowdown": slowdown}})
    return cell_of(name, spec, tier=tier, weight=weight)


def judged(
    one: Cell,
    verdict: Verdict,
    difference: float = 0.0,
    *,
    p_value: float = 1.0,
    half: float = 0.005,
    more: tuple[Check, ...] = (),
    limits: dict[str, Any] | None = None,
) -> JudgedCell:
    compared = Comparison(
        metric="accuracy",
        value=MEAN + difference,
        baseline_value=MEAN,
        counts=(100, 100),
        difference=difference,
        low=difference - half,
        high=difference + half,
        limit=one.spec.gate.max_accuracy_drop,
        method="prompts",
    )
    values = (MEAN + difference, MEAN, 0.01, "share", p_value)
    check = Check("accuracy", verdict, "It was so.", *values, compared=compared)
    return JudgedCell(one, "run", GateReport("run", "stable", [check, *more], limits or {}))


def reasons(decision: Decision) -> dict[str, str]:
    return dict(decision.counted)


def test_all_limits_that_count_have_to_pass():
    passing = [judged(cell("a"), "pass"), judged(cell("b"), "pass")]
    assert decide(passing).word == "GO"
    assert decide(passing).headline == "GO: all 2 limits that count are shown to be kept."
    open_ = decide([*passing, judged(cell("c"), "inconclusive")])
    assert (open_.word, open_.headline) == ("INCONCLUSIVE", "INCONCLUSIVE: open: c · m (accuracy).")
    assert decide([*passing, JudgedCell(cell("c"), None, None, "It has no run.")]).word == "INCONCLUSIVE"
    failed = decide([*passing, judged(cell("c"), "inconclusive"), judged(cell("d"), "fail", -0.1, p_value=1e-9)])
    assert (failed.word, failed.headline) == ("NO-GO", "NO-GO: beyond the limit: d · m (accuracy).")


def test_a_drop_without_any_variance_fails_and_no_difference_passes():
    for difference, word, p_value in ((-MEAN, "NO-GO", 0), (0.0, "GO", 1)):
        cells = [judged(cell(name, "supporting"), "pass", difference, half=0) for name in "ab"]
        decision = decide([judged(cell("c"), "pass"), *cells])
        assert (decision.word, decision.weighted["models/m"].p_value) == (word, p_value)


def test_advisory_evaluations_are_shown_and_do_not_count():
    bad = judged(cell("x", "advisory"), "fail", -0.5, p_value=1e-9)
    decision = decide([judged(cell("a"), "pass"), bad])
    assert decision.word == "GO"
    assert decision.judged[1].report is not None and decision.judged[1].report.checks[0].verdict == "fail"
    assert decision.tests == 1


def test_tests_share_the_risk_of_a_false_alarm():
    """Two tests fail at 5% each, two-sided: 2.5% each towards worse; more tests at less."""
    fails = judged(cell("a"), "fail", -0.05, p_value=0.04)
    rest = [judged(cell(name), "pass") for name in "bcdefghi"]
    assert decide([fails]).level == decide([fails, rest[0]]).level == 0.05
    few, many = decide([fails, *rest[:1]]), decide([fails, *rest])
    assert (few.word, many.word) == ("NO-GO", "INCONCLUSIVE")
    assert many.level == pytest.approx(0.1 / 9)
    assert many.judged[0].report is not None
    assert many.judged[0].report.checks[0].words.endswith("this decision needs p ≤ 0.011.")
    sure = replace(fails, report=replace(fails.report, checks=[replace(fails.report.checks[0], p_value=0.01)]))
    assert decide([sure, *rest]).word == "NO-GO"
    assert decide([sure, *rest], is_nightly=True).word == "SUSPECT", "one decision alone would fail"
    doubtful = judged(cell("a"), "suspect", -0.05, p_value=0.04)
    assert decide([doubtful, *rest], is_nightly=True).word == "INCONCLUSIVE", "nor would one decision"
    later = judged(cell("a"), "pass", more=(Check("tokens", "waiting", "Later."),))
    said = "GO: all 2 limits that count are shown to be kept. Not judged yet: a · m (tokens)."
    assert decide([later, rest[0]], is_nightly=True).headline == said


def test_limits_on_speed_are_one_test_more():
    assert decide([judged(cell("a", speed=0.1), "pass")]).tests == 2


@pytest.mark.parametrize("is_nightly", [False, True])
def test_check_repeats_refuses_suites_that_no_slowdown_stops(is_nightly):
    """A candidate that is three times slower in every repeat is NO-GO, unless the suite is refused."""
    limits, dice = {str(metric): limit for metric, limit in GateSpec().max_slowdown.items()}, np.random.default_rng(1)
    spec = parse_spec({**SPEC, "gate": {"max_slowdown": limits}})
    for repeats in (1, 2, 3, 4, 5):
        seconds = [
            (is_new, (1 + 2 * is_new) * dice.normal(1, 0.01)) for is_new in (False, True) for _ in range(repeats)
        ]
        rows = [
            {"metric": metric, "unit": "", "higher_is_better": "per_s" in metric, "is_candidate": is_new}
            | {"value": 1 / took if "per_s" in metric else took}
            for metric in limits
            for is_new, took in seconds
        ]
        compared = compare_repeats(rows, limits, nights=NIGHTS if is_nightly else 1)
        checks = [
            judge_speed(one, limit, compared[one], nights=NIGHTS if is_nightly else 1) for one, limit in limits.items()
        ]
        cells = [cell_of(str(i), spec, repeats=repeats) for i in range(20)]
        judged = [JudgedCell(one, "run", GateReport("run", "stable", checks)) for one in cells]
        try:
            check_repeats(cells, is_nightly=is_nightly)
        except SpecError as error:
            assert repeats < (5 if is_nightly else 3) and decide(judged, is_nightly=is_nightly).word != "NO-GO"
            fix, other = re.findall("`(.*?)`", str(error))
            check_repeats([replace(one, **yaml.safe_load(fix)) for one in cells], is_nightly=is_nightly)
            unlimited = override_spec(spec, yaml.safe_load(other)["overrides"], origin="the suite")
            check_repeats([replace(one, spec_json=canonical_json(unlimited)) for one in cells], is_nightly=is_nightly)
        else:
            assert decide(judged, is_nightly=is_nightly).word == "NO-GO"


def test_check_repeats_asks_for_none_without_limits_on_speed_or_a_baseline():
    check_repeats([cell("a"), replace(cell("b", speed=0.1), baseline=None), cell("c", "advisory", speed=0.1)])
    with pytest.raises(SpecError, match=r"need 5 repeats: a · m \(1\)"):
        check_repeats([cell("a", speed=0.1)], is_nightly=True)


def test_failures_without_a_test_count_at_any_level():
    errors = Check("errors", "fail", "Errors are 50% of the answers.")
    rest = [judged(cell(name), "pass") for name in "bcdefghi"]
    assert decide([judged(cell("a"), "pass", more=(errors,)), *rest]).word == "NO-GO"


def test_supporting_evaluations_count_by_their_weighted_mean():
    dice = np.random.default_rng(1)
    differences, weights, halves = dice.normal(-0.01, 0.02, 4), [1, 2, 5, 0.5], dice.uniform(0.01, 0.05, 4)
    limits = [0.01, 0.0, 0.02, 0.05]

    def weigh(limits: list[float]) -> Check:
        cells = [cell(str(i), "supporting", weight=weights[i], limit=limits[i]) for i in range(4)]
        halved = zip(cells, differences, halves, strict=True)
        (check,) = decide([judged(one, "pass", mean, half=half) for one, mean, half in halved]).weighted.values()
        return check

    check = weigh(limits)
    mean = np.average(differences, weights=weights)
    shares = np.array(weights) / sum(weights)
    error = np.sqrt(((shares * halves / norm.ppf(0.975)) ** 2).sum())
    assert check.candidate == pytest.approx(MEAN + mean) and check.baseline == pytest.approx(MEAN)
    assert (check.compared.low, check.compared.high) == pytest.approx(norm.interval(0.95, mean, error))
    assert check.limit == pytest.approx(np.average(limits, weights=weights))
    assert weigh([0.0] * 4).p_value == pytest.approx(2 * norm.sf(-mean / error)), "that of a mean exactly at its limit"


def test_supporting_evaluations_pass_only_with_all_lost_answers_within_the_limit():
    one = judged(cell("a", "supporting"), "inconclusive")
    check = one.report.checks[0]
    lost = replace(check, compared=replace(check.compared, lost=0.09))
    decision = decide([replace(one, report=replace(one.report, checks=[lost]))])
    assert (decide([one]).word, decision.word) == ("GO", "INCONCLUSIVE")
    assert "9% of the prompts lack a score in one run" in decision.weighted["models/m"].words


def test_a_failure_of_one_supporting_evaluation_is_outweighed():
    one = judged(cell("a", "supporting"), "fail", -0.03, p_value=1e-9)
    good = judged(cell("b", "supporting", weight=9), "pass", +0.01)
    assert decide([one, good]).word == "GO"
    assert decide([one]).word == "NO-GO"
    assert decide([one, JudgedCell(cell("c", "supporting"), None, None, "It has no run.")]).word == "INCONCLUSIVE"


def test_each_model_has_its_own_weighted_mean():
    cells = [cell("a", "supporting"), replace(cell("a", "supporting"), variant="models/other", label="a · other")]
    decision = decide([judged(cells[0], "pass"), judged(cells[1], "fail", -0.2, p_value=1e-9)])
    assert reasons(decision) == {"supporting evaluations · m": "pass", "supporting evaluations · other": "fail"}
    assert decision.tests == 2

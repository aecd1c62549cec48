"""gate.stop decided: a run ends at the look that decides its accuracy, interrupted or not, and can be completed."""

from pathlib import Path
from typing import Any

import pytest
from run_kit import FAKE, complete, completion_of, query, settings_in, vanish

from assayline.comparison.gate import judge_run
from assayline.engines.fake import echo
from assayline.errors import SpecError
from assayline.evaluation.begin import Evaluation, begin_evaluation, plan_run
from assayline.evaluation.order import read_shard
from assayline.evaluation.rebuild import rebuild_run
from assayline.evaluation.rescore import rescore_run
from assayline.evaluation.resume import describe_left, preview_run
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.identity import canonical_json
from assayline.store.database import connect
from assayline.store.parts import list_parts, write_part

PROMPTS = 100
ROWS = [{"question": f"say {i}", "answer": str(i)} for i in range(PROMPTS)]
WRONG_FIFTH = "{{ messages[0].content }}{% if messages[0].content.split()[1] | int % 5 == 0 %} what{% endif %}"
FUNCTION = """
def score(answer, target, row):
    with open("calls", "a") as calls:
        calls.write(".")
    return answer.strip() == target
"""
GATE = {"max_slowdown": {}, "stop": "decided"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.fixture
def make(make_spec: Any, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Specs against a baseline of right answers. Their function notes how often it is called."""
    (tmp_path / "counting.py").write_text(FUNCTION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def build(template: str = "{{ messages[0].content }}", gate: dict[str, Any] | None = None) -> EvalSpec:
        prompts = {"source": {"kind": "inline", "rows": ROWS}, "columns": {"target": "answer"}}
        spec: EvalSpec = make_spec(
            engine=FAKE,
            prompts=prompts,
            chat={"template": template},
            gate=gate or {},
            shard_requests=16,
            scorers=["exact_match", {"kind": "python", "function": "counting:score"}],
        )
        return spec

    baseline = complete(build(), settings, "never").run_id
    return lambda template, **gate: build(template, {**GATE, "baseline": baseline, **gate})


def judge(settings: Settings, run_id: str, **limits: Any) -> tuple[str, str]:
    with connect(settings.database_path, 10) as connection:
        check = judge_run(connection, run_id, overrides=limits).checks[1]
    return check.verdict, check.words


def decided(settings: Settings, run_id: str) -> list[Any]:
    return query(settings, f"select prompts, look from decided_run where run_id = '{run_id}'")


def facts(settings: Settings, run_id: str) -> tuple[Any, ...]:
    """State, prompts that decided, requests not sent, requests without a row, prompts with a score."""
    (found,) = query(
        settings,
        "select state, stopped_after, count_if(status = 'unsent'), count_if(status = 'missing'), "
        "(select count(distinct prompt_id) from scores where run_id = run.run_id) "
        f"from run join stg_requests using (run_id) where run_id = '{run_id}' group by all",
    )
    return found


def interrupt(spec: EvalSpec, settings: Settings, answers: int, order: int = 1) -> Evaluation:
    """Resume a run that was killed after answers to its first prompts, or its last ones, without another answer."""
    first = begin_evaluation(spec, settings, "never")
    first.prepare()
    requests = [request for shard in sorted(list_parts(first.run_dir, "requests")) for request in read_shard(shard)]
    rows = [completion_of(one.request_id, text=echo(one), finish_reason="stop") for one in requests[::order][:answers]]
    write_part(first.run_dir, "completions", "killed", rows)
    vanish(first)
    evaluation = begin_evaluation(spec, settings, first.run_id)
    evaluation.prepare()
    return evaluation


def test_early_stop_decides_the_same_when_interrupted_and_asks_all_when_resumed(make, settings):
    spec = make(WRONG_FIFTH)
    whole = complete(spec, settings, "never")
    decision = query(settings, f"select look, prompts from decided_run where run_id = '{whole.run_id}'")
    assert decision == [(5, 50)] and facts(settings, whole.run_id) == ("completed", 50, 0, 0, 50)
    verdict, words = judge(settings, whole.run_id)
    assert verdict == "fail" and "over 50 prompts, by -0.1800 (look 5 of 10: 99.107% interval" in words

    for answers, order in ((49, 1), (99, -1)):
        early = interrupt(spec, settings, answers, order)
        assert not early.early_stop.try_decide(may_wait=True), "the first 50 do not all have answers"
        vanish(early)
    stopped = interrupt(spec, settings, 63)
    assert stopped.early_stop.try_decide(may_wait=True) and stopped.early_stop.look - 1 == 5
    run_id = stopped.run_id
    assert stopped.finish(stopped.prepare()).notes == [
        "Stopped early after 50 of 100 prompts, as accuracy is decided: fail."
    ]
    assert facts(settings, run_id) == ("completed", 50, 37, 0, 50)
    assert judge(settings, run_id) == (verdict, words.replace(whole.run_id, run_id))
    assert query(settings, f"select obstacle from run where run_id = '{run_id}'") == [("it was stopped early",)]

    rescored = rescore_run(settings.run_dir(run_id), settings, [])
    rebuilt = rebuild_run(settings.run_dir(run_id), settings.database_path, 10)
    assert rebuilt.scores == {"exact_match": 50, "score": 50} and facts(settings, run_id) == (
        "completed",
        50,
        37,
        0,
        50,
    )
    assert [row["samples"] for row in rescored.accuracies] == [50, 50]

    left, _ = preview_run(plan_run(spec)[0], canonical_json(spec), settings.data_dir / "runs", run_id)
    assert left is not None and describe_left(settings.run_dir(run_id), left) == "63 of 100 requests answered"
    complete(spec, settings, run_id)
    assert facts(settings, run_id) == ("completed", None, 0, 0, 100)
    verdict, words = judge(settings, run_id)
    assert verdict == "fail" and "over 100 prompts, by -0.2000 (look 10 of 10: 97.21% interval" in words
    with pytest.raises(SpecError, match="is completed"):
        begin_evaluation(spec, settings, run_id)


def test_early_stop_judges_by_a_function_that_scores_each_answer_once(make, settings, tmp_path):
    stopped = interrupt(make(WRONG_FIFTH, scorer="score"), settings, 70)
    (tmp_path / "calls").unlink()
    assert stopped.early_stop.try_decide(may_wait=True) and stopped.early_stop.look - 1 == 5
    assert (tmp_path / "calls").read_text() == "." * 50
    stopped.abandon("cancelled")


def test_early_stop_asks_all_prompts_without_a_baseline(make, settings):
    result = complete(make(WRONG_FIFTH, baseline="nights"), settings, "never")
    assert facts(settings, result.run_id) == ("completed", None, 0, 0, 100)
    assert "because accuracy cannot be judged before the end: There is no baseline 'nights'" in result.notes[0]


def test_early_stop_asks_all_prompts_of_an_equal_model(make, settings):
    for limit, verdict, first in ((0.01, "inconclusive", None), (0.2, "pass", 30)):
        run_id = complete(make("{{ messages[0].content }} ", max_accuracy_drop=limit), settings, "never").run_id
        assert facts(settings, run_id) == ("completed", first, 0, 0, first or 100)
        assert judge(settings, run_id)[0] == verdict

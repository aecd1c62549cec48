"""Verdicts of the harness: which metrics are scores, how errors count, and that a rebuild keeps them.

The harness is not needed here: its results are given in its own form. `test_lm_eval_tasks.py` asks it.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from run_kit import FAKE, complete, list_runs, query

from assayline.errors import SpecError, StoreError
from assayline.harness import judge, tasks
from assayline.harness.build import Encoded, build_harness_requests, identify_document
from assayline.run.rebuild import rebuild_run
from assayline.run.rescore import rescore_run
from assayline.spec.criteria import Contains
from assayline.spec.file import parse_spec
from assayline.spec.identity import spec_hash
from assayline.store.database import connect
from assayline.store.metrics import ensure_metrics, read_metric_table
from assayline.store.score_files import HarnessScore, HarnessScores, read_harness_scores, write_harness_scores
from assayline.store.scoring import StoredAnswer, insert_harness_scores

SPEC = {"model": "m", "prompts": {"source": {"kind": "lm_eval", "task": "sums"}}, "engine": {"backend": "fake"}}
DOCUMENTS: list[dict[str, Any]] = [{"question": "1 + 1"}, {"question": "2 + 2"}]


@dataclass
class Instance:
    """As the harness has them."""

    task_name: str
    doc_id: int
    doc: dict[str, Any]
    idx: int = 0
    request_type: str = "generate_until"
    args: tuple[Any, ...] = ("question", {})
    repeats: int = 1


def answer_of(document: int, repeat: int = 0, option: int | None = None, **values: Any) -> StoredAnswer:
    prompt_id = identify_document("sums", DOCUMENTS[document])
    row = StoredAnswer(
        prompt_id=prompt_id,
        occurrence=0,
        source_id=f"sums/{document}",
        repeat_index=repeat,
        option_index=option,
        text=None,
        option_logprob=None,
        prompt_logprobs=None,
        error_kind=None,
    )
    return replace(row, **values)


def instance_of(document: int, option: int = 0) -> Instance:
    return Instance("sums", document, DOCUMENTS[document], option)


def test_answers_are_found_by_document_repeat_and_option():
    rows = [answer_of(number, repeat, text=f"{number}/{repeat}") for repeat in (1, 0) for number in (1, 0)]
    texts = judge.HarnessAnswers(rows)
    assert texts.answer("generate_until", instance_of(1), 1) == "1/1"
    assert texts.answer("generate_until", instance_of(0), 0) == "0/0"
    likely, unlikely = [{"5": -0.1}, {"7": -0.2}], [{"5": -0.1}, {"7": -3.0, "8": -0.2}]
    options = judge.HarnessAnswers([
        answer_of(0, option=1, option_logprob=-3.1, prompt_logprobs=unlikely),
        answer_of(0, option=0, option_logprob=-0.3, prompt_logprobs=likely),
    ])  # fmt: skip
    assert options.answer("loglikelihood", instance_of(0, 0), 0) == (-0.3, True)
    assert options.answer("loglikelihood", instance_of(0, 1), 0) == (-3.1, False)
    windows = judge.HarnessAnswers([answer_of(0, option=number, option_logprob=-float(number)) for number in range(3)])
    assert windows.answer("loglikelihood_rolling", instance_of(0), 0) == -3.0


def test_two_equally_likely_tokens_are_both_the_likeliest():
    tied = judge.HarnessAnswers([answer_of(0, option=0, option_logprob=-0.7, prompt_logprobs=[{"5": -0.7, "6": -0.7}])])
    assert tied.answer("loglikelihood", instance_of(0), 0) == (-0.7, True)


def test_judge_does_not_count_an_error_row_as_an_answer():
    rows = judge.HarnessAnswers([answer_of(0, error_kind="prompt_too_long"), answer_of(1, text="4")])
    assert rows.answer("generate_until", instance_of(0), 0) == ""
    assert rows.answer("loglikelihood", instance_of(0), 0) == (-math.inf, False)
    assert rows.errors == {"sums/0": "prompt_too_long"}


def test_a_task_that_has_changed_is_refused():
    rows = judge.HarnessAnswers([answer_of(0, text="2")])
    for changed in (instance_of(1), replace(instance_of(0), doc={"question": "1 + 2"})):
        with pytest.raises(StoreError, match=rf"Document {changed.doc_id} of task sums differs from the run"):
            rows.answer("generate_until", changed, 0)


class OwnEncoder:
    """In place of the one that needs the harness: `cut` tokens are cut from each prompt."""

    def __init__(self, cut: int = 0) -> None:
        self._cut = cut

    def check_room(self, instance: Any) -> None:
        pass

    def encode(self, instance: Any) -> list[Encoded]:
        return [Encoded("question", [1, 2], {}, cut_tokens=self._cut)]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        # squadv2 of lm_eval 0.4.13: construct_requests returns these two, both with idx 0
        (("generate_until", "loglikelihood"), "asks for a text and a likelihood per document"),
        (("generate_until", "generate_until"), "asks for several texts per document"),
    ],
)
def test_build_harness_requests_refuses_a_task_before_any_of_the_run_s_requests_is_made(kinds, said):
    good = replace(instance_of(0), task_name="good")
    bad = [replace(instance_of(1), request_type=kind, args=("question", " no")) for kind in kinds]
    made = build_harness_requests([good, *bad], OwnEncoder(), is_served=False)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=rf"Task sums {said}.* hint: leave the task out"):
        next(made)


def test_build_harness_requests_names_the_task_of_a_prompt_that_was_cut():
    for cut, cut_in in ((0, None), (5, "sums")):
        (made,) = build_harness_requests([instance_of(0)], OwnEncoder(cut), is_served=False)  # type: ignore[arg-type]
        assert made.cut_in == cut_in and made.prompt.metadata.get("cut_tokens", 0) == cut


RESULTS: dict[str, Any] = {
    "lm_eval_version": "0.4.13",
    "results": {"sums": {"exact_match,strict": 0.5, "exact_match_stderr,strict": "N/A", "ppl,strict": 7.5}},
    "groups": {"all": {"exact_match,strict": 0.5}},
    "aggregations": {"sums": {"exact_match": "mean", "ppl": "perplexity", "length": "mean", "pairs": "mean"}},
    "samples": {
        "sums": [
            {
                "doc_id": number, "filter": "strict", "metrics": ["exact_match", "ppl", "length", "pairs"],
                "filtered_resps": [["2", "no"][number]], "exact_match": 1.0 - number, "ppl": -3.0,
                "length": 17.0, "pairs": (0.5, 1),
            }
            for number in (0, 1)
        ]
    },
}  # fmt: skip


def samples_of(*values: Any) -> list[dict[str, Any]]:
    """A task's documents with one metric, as the harness has them."""
    return [
        {"doc_id": number, "filter": "none", "metrics": ["acc"], "filtered_resps": ["2"], "acc": value}
        for number, value in enumerate(values)
    ]


def judge_values(monkeypatch: pytest.MonkeyPatch, rows: list[StoredAnswer], **tasks: list[Any]) -> judge.HarnessResults:
    found = {
        "results": {task: {"acc,none": 0.5} for task in tasks},
        "aggregations": {task: {"acc": "mean"} for task in tasks},
        "samples": {task: samples_of(*values) for task, values in tasks.items()},
        "lm_eval_version": "0.4.13",
    }
    monkeypatch.setattr(judge, "judge", lambda *_: found)
    spec = parse_spec(SPEC)
    return judge.judge_answers(spec, spec.prompts.source, None, rows)  # type: ignore[arg-type]


def test_judge_answers_takes_a_rounding_error_for_a_share(monkeypatch):
    """NumPy's sum of the normalised probabilities of truthfulqa_mc2 for one document in a thousand."""
    rows = [answer_of(number, source_id=f"{task}/{number}", text="2") for task in ("a", "b") for number in (0, 1)]
    verdict = judge_values(monkeypatch, rows, a=[1.0000000000000002, -1e-9], b=[1.0, 0.0])
    scores = verdict.judged.scores
    assert [score.value for score in scores if score.scorer == "all tasks"] == [1.0, 0.0, 1.0, 0.0]
    assert [score.value for score in scores if score.scorer in ("a: acc,none", "b: acc,none")] == [1.0, 0.0, 1.0, 0.0]
    assert next(iter(verdict.judged.scorers)) == "all tasks" and verdict.notes == []


def test_judge_answers_decides_by_task_whether_values_are_shares(monkeypatch):
    rows = [answer_of(number, source_id=f"{task}/{number}", text="2") for task in ("a", "b") for number in (0, 1)]
    verdict = judge_values(monkeypatch, rows, a=[0.5, 17.0], b=[1.0, 0.0])
    assert [score.value for score in verdict.judged.scores if score.scorer == "all tasks"] == [1.0, 0.0]
    assert verdict.judged.scorers["all tasks"]["tasks"] == {"a": None, "b": "b: acc,none"}
    assert verdict.notes == [
        "acc,none of task a has no scores per document: document 1 has 17.0, expected a number from 0 to 1. Only "
        "the harness's average is stored."
    ]


def test_judge_answers_does_not_look_at_the_value_of_an_error_row(monkeypatch):
    """Shares of probabilities that are all 0, as those of an error row are, are NaN."""
    rows = [answer_of(0, source_id="a/0", text="2"), answer_of(1, source_id="a/1", error_kind="prompt_too_long")]
    verdict = judge_values(monkeypatch, rows, a=[1.0, math.nan])
    assert [score.value for score in verdict.judged.scores] == [1.0, 0.0] and verdict.notes == []


def test_only_means_of_shares_are_scores(monkeypatch):
    monkeypatch.setattr(judge, "judge", lambda *_: RESULTS)
    spec = parse_spec(SPEC)
    rows = [answer_of(0, text="2"), answer_of(1, error_kind="template_error")]
    verdict = judge.judge_answers(spec, spec.prompts.source, None, rows)  # type: ignore[arg-type]
    assert verdict.judged.scorers == {
        "exact_match,strict": {
            "kind": "lm_eval", "metric": "exact_match", "filter": "strict", "harness": {"sums": 0.5, "all": 0.5},
            "definition": "lm_eval 0.4.13",
        },
        "ppl,strict": {
            "kind": "lm_eval", "metric": "ppl", "filter": "strict", "harness": {"sums": 7.5},
            "definition": "lm_eval 0.4.13",
        },
    }  # fmt: skip
    assert next(iter(verdict.judged.scorers)) == "exact_match,strict"
    assert [(score.value, score.extracted, score.explanation) for score in verdict.judged.scores] == [
        (1.0, "2", "exact_match,strict of lm-evaluation-harness"),
        (0.0, None, "error: template_error"),
    ]
    assert [note.split(":")[0] for note in verdict.notes] == [
        f"{metric},strict of task sums has no scores per document" for metric in ("length", "pairs")
    ]


def test_scores_of_the_harness_come_first_and_survive_scoring_again_and_a_rebuild(make_spec, settings):
    complete(make_spec(engine=FAKE), settings)
    (run_id,) = list_runs(settings)
    run_dir = settings.run_dir(run_id)
    prompts = query(settings, "select prompt_id, occurrence from prompts order by source_row")
    scores = [
        HarnessScore("acc,none", id, occurrence, number % 2, None, "why")
        for number, (id, occurrence) in enumerate(prompts)
    ]
    described = {
        "acc,none": {"kind": "lm_eval", "harness": {"sums": 0.5}},
        "word_perplexity,none": {"kind": "lm_eval", "harness": {"words": 7.25}},
    }
    judged = HarnessScores(described, scores)
    write_harness_scores(run_dir, judged)
    assert read_harness_scores(run_dir) == judged
    rescore_run(run_dir, settings, [])
    rescore_run(run_dir, settings, [Contains(kind="contains")])
    expected = [("acc,none", "lm_eval", len(prompts) // 2 / len(prompts))]
    accuracy = "select scorer, kind, mean from accuracy order by ordinal limit 1"
    assert query(settings, accuracy) == expected
    assert query(settings, "select scorer from main.run") == [("acc,none",)]
    with connect(settings.database_path, 10) as connection:
        shown = {row["metric"]: row["value"] for row in read_metric_table(connection, run_id)}
    assert shown["sums (acc,none)"] == 0.5 and shown["accuracy (acc,none)"] == expected[0][2]
    assert shown["words (word_perplexity,none)"] == 7.25 and "accuracy (word_perplexity,none)" not in shown
    settings.database_path.unlink()
    rebuilt = rebuild_run(run_dir, settings.database_path, 10)
    assert rebuilt.scores["acc,none"] == len(prompts) and "contains" in rebuilt.scores
    with connect(settings.database_path, 10) as connection:
        ensure_metrics(connection)
    assert query(settings, accuracy) == expected
    assert (
        json.loads(query(settings, "select arguments_json from scorers where scorer = 'acc,none'")[0][0])
        == (judged.scorers["acc,none"])
    )


def test_insert_judged_takes_scorers_without_any_score(tmp_path):
    """A task of perplexities alone."""
    judged = HarnessScores(
        {"word_perplexity,none": {"kind": "lm_eval", "harness": {"t": 7.5}, "definition": "lm_eval 0.4.13"}}
    )
    with connect(tmp_path / "new.duckdb", 10) as connection:
        assert insert_harness_scores(connection, "run", judged) == {"word_perplexity,none": 0}
        found = connection.execute("select definition, arguments_json from scorers").fetchall()
    assert found == [("lm_eval 0.4.13", '{"harness": {"t": 7.5}, "kind": "lm_eval"}')]


def test_judge_rejects_a_damaged_file_of_scores(tmp_path):
    write_harness_scores(tmp_path, HarnessScores())
    (tmp_path / "lm_eval" / "scores.json").write_text("{")
    with pytest.raises(StoreError, match=r"scores\.json, the scores of lm-evaluation-harness, cannot be read"):
        read_harness_scores(tmp_path)


def test_a_task_s_prompt_set_is_named_by_it():
    assert parse_spec(SPEC).prompts.set_name == "sums"
    two = {**SPEC, "prompts": {"source": {"kind": "lm_eval", "task": ["sums", "words"]}}}
    assert parse_spec(two).prompts.set_name == "sums+words"
    assert spec_hash(parse_spec(SPEC)) != spec_hash(parse_spec(two))


def test_judge_error_names_the_missing_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'assayline\[lm-eval\]'"):
        tasks._open_manager(None, [])

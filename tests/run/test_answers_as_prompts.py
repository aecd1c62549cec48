"""Runs whose prompts are the answers of other runs, from the judged run to the judge's scores."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_kit import FAKE, answer_run, complete, copy_run, query, settings_in, vanish

from assayline.comparison.baselines import pin_baseline
from assayline.errors import PromptError, SpecError
from assayline.flows.cli import run
from assayline.run.begin import begin_evaluation
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.thread import DatabaseThread

pytestmark = pytest.mark.slow

ROWS = [
    {"id": f"q{n}", "question": f"{n} + {n}", "answer": str(2 * n), "level": n, "first": "a word"} for n in range(4)
]
RIGHT, WRONG = '{"reason": "Same.", "verdict": "correct"}', '{"reason": "Other.", "verdict": "incorrect"}'
VERDICT = {"kind": "verdict", "values": {"correct": 1, "incorrect": 0}, "label": "level"}
PREFERENCE = {"kind": "verdict", "values": {"first": 1, "tie": 0.5, "second": 0}}


@pytest.fixture(scope="module")
def judge_sums(make_spec: Any) -> Callable[..., str]:
    """Complete a run of sums with these answers (None: an error) and return its id."""

    def make(settings: Settings, *texts: str | None, rows: list[dict[str, Any]] | None = None, **fields: Any) -> str:
        prompts = {
            "source": {"kind": "inline", "rows": ROWS[: len(texts)] if rows is None else rows},
            "columns": {"target": "answer", "metadata": ["level", "first"]},
            **fields.pop("prompts", {}),
        }
        spec = make_spec(engine=FAKE, prompts=prompts, scorers=["numeric"], **fields)
        return answer_run(spec, settings, *texts).run_id

    return make


@pytest.fixture
def judged(judge_sums: Callable[..., str], settings: Settings) -> Callable[..., str]:
    return partial(judge_sums, settings)


@pytest.fixture(scope="module")
def kept(judge_sums: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two right answers, a wrong one and an error."""
    settings = settings_in(tmp_path_factory.mktemp("kept"))
    return settings.run_dir(judge_sums(settings, "0", None, "five", "6"))


@pytest.fixture
def run_id(kept: Path, settings: Settings) -> str:
    """A copy of that run, the first one in the test's database."""
    return copy_run(kept, settings).name


@pytest.fixture
def judge_spec(make_spec: Any) -> Callable[..., EvalSpec]:
    """Make the spec of a judge over a source."""

    def make(source: dict[str, Any], template: str = "{{ prompt }} = {{ answer }}?", **prompts: Any) -> EvalSpec:
        asked = {"source": source, "template": template, "columns": {}, **prompts}
        scorer = VERDICT if source["kind"] == "run" else PREFERENCE
        made: EvalSpec = make_spec(name="judge", engine=FAKE, prompts=asked, scorers=[scorer])
        return made

    return make


def prepare(spec: EvalSpec, settings: Settings) -> str:
    """Store the prompts of a new run, which goes no further, and return its id."""
    evaluation = begin_evaluation(spec, settings, "never")
    evaluation.prepare()
    assert evaluation.try_load() is None
    vanish(evaluation)
    return evaluation.run_id


def read_prompts(settings: Settings, run_id: str, columns: str = "messages_json, target, metadata_json") -> list[Any]:
    rows = query(settings, f"select {columns} from prompts where run_id = '{run_id}' order by source_row")
    return [
        [json.loads(value) if isinstance(value, str) and value[:1] in "[{" else value for value in row] for row in rows
    ]


def test_answers_of_a_run_are_prompts_whose_metadata_has_their_origin(run_id, judge_spec, settings):
    ids = {row: prompt_id for prompt_id, row in query(settings, "select prompt_id, source_row from prompts")}
    spec = judge_spec({"kind": "run", "run": run_id}, columns={"metadata": ["level"]})
    judge = answer_run(spec, settings, RIGHT, WRONG, "Same.").run_id
    assert read_prompts(settings, judge) == [
        [
            [{"role": "user", "content": f"{row} + {row} = {text}?"}],
            str(2 * row),
            {
                "level": row,
                "source": {"run_id": run_id, "prompt_id": ids[row], "occurrence": 0, "repeat_index": 0},
            },
        ]
        for row, text in ((0, "0"), (2, "five"), (3, "6"))
    ]
    scores = (
        "select value, extracted, explanation, error_kind from scores "
        f"join prompts using (run_id, prompt_id, occurrence) where run_id = '{judge}' order by source_row"
    )
    assert query(settings, scores) == [
        (1.0, "correct", "Same.", None),
        (0.0, "incorrect", "Other.", None),
        (0.0, None, "not a JSON object", "unreadable"),
    ]
    [(arguments,)] = query(settings, f"select arguments_json from scorers where run_id = '{judge}'")
    assert json.loads(arguments) == {
        "kind": "verdict", "name": None, "scale": None, "label": "level",
        "values": {"correct": 1.0, "incorrect": 0.0},
    }  # fmt: skip
    [(name, mean)] = query(
        settings,
        f"select prompt_set, mean_without_errors from accuracy join runs using (run_id) where run_id = '{judge}'",
    )
    assert (name, mean) == (f"answers of {run_id}", 0.5)


def test_row_of_an_answer_has_the_columns_of_its_prompt_answer_and_scores(run_id, judge_spec, settings):
    template = "{{ row | tojson }}"
    spec = judge_spec({"kind": "run", "run": run_id, "where": "level = 3 or metadata->>'level' = '3'"}, template)
    with pytest.raises(SpecError, match="level"):
        begin_evaluation(spec, settings)
    spec = judge_spec({"kind": "run", "run": run_id, "where": "scores['numeric'] = 0 and repeat = 0"}, template)
    [[[message], target, _]] = read_prompts(settings, prepare(spec, settings))
    assert target == "4" and json.loads(message["content"]) == {
        "id": "q2",
        "prompt": "2 + 2",
        "messages": [{"role": "user", "content": "2 + 2"}],
        "answer": "five",
        "reasoning": None,
        "target": "4",
        "options": None,
        "repeat": 0,
        "finish_reason": None,
        "scores": {"numeric": 0.0},
        "level": 2,
        "first": "a word",
    }


def test_repeats_of_an_answer_are_rows_in_order(judged, judge_spec, settings):
    run_id = judged(*"012345", rows=ROWS[:2], prompts={"repeats": 3})
    found = read_prompts(settings, prepare(judge_spec({"kind": "run", "run": run_id}), settings))
    assert [row[0][0]["content"][-2] for row in found] == list("012345")
    assert [row[2]["source"]["repeat_index"] for row in found] == [0, 1, 2, 0, 1, 2]


def test_pairs_show_each_answer_first_once_and_score_the_first_runs(run_id, judged, judge_spec, settings):
    one, other = run_id, judged("zero", "2", None, "6")
    template = "{{ prompt }}: {{ first }} or {{ second }}?"
    source = {"kind": "pairs", "runs": [one, other], "where": "first <> second"}
    spec = judge_spec(source, template, columns={"metadata": ["level"]})
    judge = answer_run(spec, settings, '{"verdict": "first"}', '{"verdict": "first"}').run_id
    first, second = read_prompts(settings, judge)
    assert [row[0][0]["content"] for row in (first, second)] == ["0 + 0: 0 or zero?", "0 + 0: zero or 0?"]
    own = first[2]["source"]
    assert first[2] == {"level": 0, "source": own, "other": {**own, "run_id": other}, "first": "a"}
    assert own["run_id"] == one and second[2] == {**first[2], "first": "b"} and (first[1], second[1]) == ("0", "0")
    scores = (
        "select json_extract_string(metadata_json, '$.first'), value, extracted from scores "
        f"join prompts using (run_id, prompt_id, occurrence) where run_id = '{judge}' order by 1"
    )
    assert query(settings, scores) == [("a", 1.0, "first"), ("b", 0.0, "first")]


def test_names_of_runs_are_resolved_to_ids_that_are_stored(run_id, judged, judge_spec, settings):
    old, new = run_id, judged("0")
    DatabaseThread(settings).run(lambda connection: pin_baseline(connection, settings.data_dir, "good", old))
    for given, expected in (("latest:test", new), ("baseline:good", old), (old, old), ("last", None)):
        spec = judge_spec({"kind": "run", "run": given})
        evaluation = begin_evaluation(spec, settings, "never")
        evaluation.lock.release()
        stored = json.loads((evaluation.run_dir / "spec.json").read_text())["prompts"]["source"]
        assert stored == {"kind": "run", "run": expected or new, "where": None, "not_judged_by": [], "rubric": None}
    pairs = judge_spec({"kind": "pairs", "runs": ["latest:test", "baseline:good"]}, "{{ first }}")
    evaluation = begin_evaluation(pairs, settings, "never")
    assert evaluation.spec.prompts.source.runs == [new, old]
    evaluation.lock.release()


def test_a_judge_of_a_judge_is_judged(run_id, judge_spec, settings):
    judge = answer_run(judge_spec({"kind": "run", "run": run_id}), settings, *[RIGHT] * 3).run_id
    second = prepare(judge_spec({"kind": "run", "run": judge}, "{{ source.run_id }} {{ answer }}"), settings)
    [[message], _, metadata], *_ = read_prompts(settings, second)
    assert message["content"] == f"{run_id} {RIGHT}" and metadata["source"]["run_id"] == judge


def test_an_answer_that_the_template_cannot_use_is_an_error_row_with_its_origin(run_id, judge_spec, settings):
    template = "{{ answer }} {{ level if level else reasoning }}"
    spec = judge_spec({"kind": "run", "run": run_id}, template).model_copy(update={"max_error_share": 1.0})
    judge = answer_run(spec, settings, RIGHT, RIGHT).run_id
    assert [row[2]["source"]["run_id"] for row in read_prompts(settings, judge)] == [run_id] * 3
    kinds = f"select error_kind from scores where run_id = '{judge}' order by 1 nulls last"
    assert query(settings, kinds) == [("template_error",), (None,), (None,)]


def test_conversation_reaches_the_judge_with_the_models_own_answers(make_spec, judge_spec, settings):
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "two"},
    ]
    prompts = {
        "source": {"kind": "inline", "rows": [{"messages": messages}]},
        "columns": {}, "template": None, "turns": "each",
    }  # fmt: skip
    run_id = complete(make_spec(engine=FAKE, prompts=prompts, scorers=[]), settings).run_id
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}|{% endfor %}{{ prompt }}"
    judge = prepare(judge_spec({"kind": "run", "run": run_id}, template), settings)
    [(first,)] = query(
        settings,
        "select text from completions join requests using (run_id, request_id) "
        f"where run_id = '{run_id}' and turn_index = 0",
    )
    [[[message]]] = read_prompts(settings, judge, "messages_json")
    assert message["content"] == f"user: one|assistant: {first}|user: two|two"


def test_media_reach_the_judge_as_marks_in_the_text(run_id, judge_spec, settings):
    parts = [{"type": "image"}, {"type": "text", "text": 'What is "it"?'}]
    messages = json.dumps([{"role": "system", "content": "See."}, {"role": "user", "content": parts}])
    DatabaseThread(settings).run(
        lambda connection: connection.execute("update prompts set messages_json = ?", [messages])
    )
    judge = prepare(judge_spec({"kind": "run", "run": run_id}, "{{ messages | tojson }} {{ prompt }}"), settings)
    [[message]], *_ = read_prompts(settings, judge, "messages_json")
    shown = '[image]\nWhat is "it"?'
    told = [{"role": "system", "content": "See."}, {"role": "user", "content": shown}]
    assert message["content"] == f"{json.dumps(told)} {shown}"


UNUSABLE = [
    ({"run": "nothing"}, "Run 'nothing' is not in the database"),
    ({"run": "latest:tests"}, "No completed run has the name 'tests'; did you mean 'test'"),
    ({"run": "baseline:none"}, "There is no baseline 'none'"),
    ({"run": "latest:broken"}, "has no generated answers"),
    (
        {"run": "latest:test", "where": "nowhere = 1"},
        'Referenced column "nowhere".*hint: write one SQL condition over id',
    ),
    ({"run": "latest:test", "where": "true); drop table raw.runs; --"}, "prompts.source.where cannot be used"),
    ({"run": "latest:test", "where": "true) union select (1"}, "prompts.source.where cannot be used"),
    ({"run": "latest:test", "where": "answer::int > 'x'"}, "Could not convert.*hint: write one SQL condition"),
    ({"run": "latest:test", "where": "answer = 'nothing'"}, "keeps none of 3 rows"),
    ({"runs": ["latest:test", "latest:test"]}, "are one run, .*hint: name two runs"),
    ({"runs": ["latest:test", "latest:other"]}, "have no answers to the same prompts"),
    ({"runs": ["latest:test", "latest:test"], "where": "answer = ''"}, "are one run"),
]


@pytest.mark.usefixtures("run_id")
def test_unusable_source_is_rejected_before_a_run_begins(judged, judge_spec, settings):
    judged("7", rows=[{"question": "other", "answer": "7", "level": 0, "first": ""}], name="other")
    judged(None, name="broken", max_error_share=1.0)
    before = sorted(settings.data_dir.glob("runs/*"))
    for source, told in UNUSABLE:
        kind = "pairs" if "runs" in source else "run"
        with pytest.raises(SpecError, match=told):
            begin_evaluation(judge_spec({"kind": kind, **source}), settings)
    assert sorted(settings.data_dir.glob("runs/*")) == before


def test_unfinished_run_is_not_judged(make_spec, judge_spec, settings):
    evaluation = begin_evaluation(make_spec(engine=FAKE), settings)
    evaluation.prepare()
    with pytest.raises(SpecError, match=r"is running, not completed, .*hint: resume it with"):
        begin_evaluation(judge_spec({"kind": "run", "run": evaluation.run_id}), settings)


def test_template_with_a_column_that_no_answer_has_stops_the_run(run_id, judge_spec, settings):
    spec = judge_spec({"kind": "run", "run": run_id}, "{{ context }} {{ answer }}")
    with pytest.raises(PromptError, match="variable 'context' is undefined; columns: answer, finish_reason, first"):
        begin_evaluation(spec, settings).prepare()


def test_dry_run_renders_answers_and_stores_nothing(run_id, judge_spec, settings, monkeypatch, capsys, tmp_path):
    file = tmp_path / "judge.yaml"
    file.write_text(judge_spec({"kind": "run", "run": "latest:test"}).model_dump_json(), encoding="utf-8")
    for name in ("data_dir", "lock_dir"):
        monkeypatch.setenv(f"ASSAYLINE_{name.upper()}", str(getattr(settings, name)))
    assert run("evaluate", [str(file), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert f"prompts   3 rows of answers of {run_id}, 0 duplicates" in told and "0 + 0 = 0?" in told
    assert [path.name for path in settings.data_dir.glob("runs/*")] == [run_id]

"""Tasks through lm-evaluation-harness itself, answered by the fake engine: what is asked, and how it is scored.

Agreement with the harness and a real engine, task by task, is `make bench-tasks`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from run_kit import FAKE, complete, list_runs, query, work

from assayline.errors import PromptError, SpecError
from assayline.export.make import export_run
from assayline.harness.build import HarnessEncoder
from assayline.prompts import RowError
from assayline.requests.tokenizer import load_tokenizer
from assayline.run.begin import begin_evaluation
from benchmarks.lm_eval_kinds import write_tasks

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install 'assayline[lm-eval]'")

DOCUMENTS = 8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write_tasks(tmp_path, DOCUMENTS)
    return tmp_path


def spec_of(make_spec: Any, folder: Path, task: Any, **source: Any) -> Any:
    asked = {"kind": "lm_eval", "task": task, "include_path": str(folder), **source}
    return make_spec(prompts={"source": asked, "columns": {}, "template": None}, engine=FAKE, scorers=None)


def test_a_run_of_several_kinds_has_the_scores_of_the_harness(make_spec, settings, folder):
    complete(spec_of(make_spec, folder, ["arithmetic", "choices", "cloze", "text", "vote", "subjects"]), settings)
    (run_id,) = list_runs(settings)
    results = json.loads((settings.run_dir(run_id) / "lm_eval" / "results.json").read_text())
    assert query(settings, "select is_sound, state from request_integrity join runs using (run_id)") == [
        (True, "completed")
    ]
    counts = dict(query(settings, "select metadata_json ->> 'task', count(*) from prompts group by 1"))
    assert counts == {
        "arithmetic": 8, "choices": 8, "cloze": 8, "text": 4, "vote": 8, "subjects_even": 4, "subjects_odd": 2,
    }  # fmt: skip
    asked = dict(query(
        settings,
        "select metadata_json ->> 'task', count(*) from requests join prompts using (run_id, prompt_id, occurrence) "
        "group by 1",
    ))  # fmt: skip
    assert asked["choices"] == 4 * 8 and asked["vote"] == 3 * 8 and asked["cloze"] == 8 and asked["text"] > 4
    means = query(
        settings,
        "select metadata_json ->> 'task', scorer, mean(value) from scores "
        "join prompts using (run_id, prompt_id, occurrence) where scorer <> 'all tasks' group by all",
    )
    assert len(means) == 9
    for task, scorer, mean in means:
        assert results["results"][task][scorer.removeprefix(f"{task}: ")] == pytest.approx(mean)
    covered = "select count(*), count(distinct (prompt_id, occurrence)) from scores where scorer = 'all tasks'"
    assert query(settings, covered) == [(38, 38)], "without text, whose metrics have no scores"
    assert "word_perplexity,none" in results["results"]["text"]
    (rendered,) = query(
        settings, "select rendered from requests join prompts using (run_id, prompt_id, occurrence) "
        "where source_id = 'arithmetic/0'"
    )[0]  # fmt: skip
    assert rendered.count("\n\n") == 2, "two examples stand before the question"


def test_a_chat_template_is_laid_around_examples_as_turns(make_spec, settings, folder):
    complete(spec_of(make_spec, folder, "arithmetic_chat", apply_chat_template=True), settings)
    for (rendered,) in query(settings, "select rendered from requests"):
        assert rendered.count("<|user|>") == rendered.count("<|assistant|>") == 3


def test_prompts_that_are_cut_to_fit_the_context_are_counted_by_task(make_spec, settings, folder):
    """Two examples stand before each question, some 60 tokens; the context has 40, of which the answer may have 16."""
    spec = spec_of(make_spec, folder, ["arithmetic", "choices"])
    engine = {"args": {**spec.engine.args, "max_model_len": 40}}
    evaluation = begin_evaluation(spec.model_copy(update={"engine": spec.engine.model_copy(update=engine)}), settings)
    counts = evaluation.prepare()
    assert counts.cut_prompts["arithmetic"] == DOCUMENTS
    work(evaluation)
    evaluation.finish(counts)
    lengths = "select distinct prompt_tokens from completions join requests using (run_id, request_id) "
    of_task = "join prompts using (run_id, prompt_id, occurrence) where metadata_json ->> 'task' = 'arithmetic'"
    assert query(settings, lengths + of_task) == [(24,)]
    cut = "from prompts where json_exists(metadata_json, 'cut_tokens') group by all"
    assert dict(query(settings, f"select metadata_json ->> 'task', count(*) {cut}")) == counts.cut_prompts


def test_a_task_whose_answers_leave_no_room_for_a_prompt_is_refused(make_spec, settings, folder):
    """lm_eval's own vLLM model keeps tokens[-0:], so all of them, or the tail from token N on."""
    for max_model_len in (16, 8):
        spec = spec_of(make_spec, folder, ["choices", "arithmetic"])
        engine = {"args": {**spec.engine.args, "max_model_len": max_model_len}}
        spec = spec.model_copy(update={"engine": spec.engine.model_copy(update=engine)})
        said = rf"Task arithmetic generates up to 16 tokens, but the context has only {max_model_len}.* hint: raise"
        with pytest.raises(SpecError, match=said):
            begin_evaluation(spec, settings).prepare()


def test_a_run_that_was_judged_too_late_is_resumed_and_judged(make_spec, settings, folder, monkeypatch):
    spec = spec_of(make_spec, folder, "choices")

    def fail(*_: Any) -> None:
        raise PromptError("the dataset is gone")

    with monkeypatch.context() as gone:
        gone.setattr("assayline.run.evaluation.judge_task", fail)
        with pytest.raises(PromptError, match="the dataset is gone"):
            complete(spec, settings)
    (run_id,) = list_runs(settings)
    evaluation = begin_evaluation(spec, settings)
    assert evaluation.run_id == run_id and evaluation.is_answered
    evaluation.finish(evaluation.prepare())
    assert query(settings, "select count(*) from scores where scorer = 'acc,none'") == [(DOCUMENTS,)]


def test_lm_eval_tasks_reject_a_task_that_the_harness_cannot_open(make_spec, settings, folder):
    with pytest.raises(PromptError, match="no task 'arithmetik': did you mean 'arithmetic'"):
        begin_evaluation(spec_of(make_spec, folder, "arithmetik"), settings).prepare()
    with pytest.raises(SpecError, match="is not a folder"):
        begin_evaluation(spec_of(make_spec, folder / "none", "arithmetic"), settings).prepare()
    (folder / "unsafe.yaml").write_text(
        (folder / "arithmetic.yaml").read_text().replace("task: arithmetic", "task: unsafe") + "unsafe_code: true\n"
    )
    with pytest.raises(PromptError, match=r"set prompts\.source.confirm_run_unsafe_code to true"):
        begin_evaluation(spec_of(make_spec, folder, "unsafe"), settings).prepare()


def test_an_export_is_what_the_harnesss_own_tracker_writes(make_spec, settings, folder):
    from lm_eval.loggers import EvaluationTracker

    spec = spec_of(make_spec, folder, ["arithmetic", "choices"])
    run_id = complete(spec, settings).run_id
    (ours,) = export_run(settings, run_id, "lm-eval").files
    kept = settings.run_dir(run_id) / "lm_eval"
    tasks = ("arithmetic", "choices")
    samples = {
        task: [json.loads(line) for line in (kept / f"samples_{task}.jsonl").read_text().splitlines()] for task in tasks
    }
    tracker = EvaluationTracker(output_path=str(folder / "theirs"))
    tracker.general_config_tracker.log_experiment_args("assayline", {"pretrained": spec.model}, None, None, True)
    tracker.save_results_aggregated(json.loads((kept / "results.json").read_text()), samples)
    for task in tasks:
        tracker.save_results_samples(task, samples[task])
    (theirs,) = (folder / "theirs").iterdir()
    assert theirs.name == json.loads(next(ours.glob("results_*")).read_text())["model_name_sanitized"]
    names = [[path.name.rsplit("_", 1)[0] for path in sorted(at.iterdir())] for at in (ours, theirs)]
    assert names[0] == names[1] == ["results", "samples_arithmetic", "samples_choices"]
    for task in tasks:
        lines = [next(at.glob(f"samples_{task}_*")).read_text().splitlines() for at in (ours, theirs)]
        assert [json.loads(line) for line in lines[0]] == [json.loads(line) for line in lines[1]]
    written, wanted = (json.loads(next(at.glob("results_*")).read_text()) for at in (ours, theirs))
    ours_alone = {"config", "fewshot_as_multiturn", "total_evaluation_time_seconds"}
    assert set(written) == set(wanted) - {"aggregations", "start_time", "end_time"}
    assert {key: written[key] for key in set(written) - ours_alone} == {
        key: wanted[key] for key in set(written) - ours_alone
    }


def test_a_harness_that_encodes_in_another_way_gives_error_rows(tiny_model):
    """Its class of models has methods that its own way to encode never calls, in the versions that are known."""
    template = HarnessEncoder(load_tokenizer(tiny_model), 128, {})._template
    for method in (template.generate_until, template.loglikelihood_rolling):
        with pytest.raises(RowError, match=r"lm-evaluation-harness called .* hint: pip install"):
            method([])

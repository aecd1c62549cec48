"""Resume of an interrupted run: it sends only unanswered requests, so that none is lost or counted twice."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from run_kit import (
    FAKE,
    answer_some,
    begin_and_vanish,
    complete,
    completion_of,
    part_of,
    query,
    read_line,
    request_of,
    rows_of,
    start_python,
    vanish,
    work,
)

from assayline.errors import Death, EngineDiedError, PromptsChangedError, RunFailedError, SpecError, StoreError
from assayline.run.begin import begin_evaluation, plan_run
from assayline.run.judging import find_unreported
from assayline.run.order import read_shard
from assayline.run.resume import choose_run, describe_left, describe_way_on
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.spec.identity import canonical_json
from assayline.store.answers import survey_answers
from assayline.store.database import connect
from assayline.store.locks import is_worked_on, lock_run
from assayline.store.manifest import AUTO, NEVER, Purpose, read_manifest, write_manifest
from assayline.store.parts import write_part
from assayline.store.thread import DatabaseThread

pytestmark = pytest.mark.slow

HOLD_RUN = """
import sys
from pathlib import Path
from assayline.store.locks import lock_run
lock = lock_run(Path(sys.argv[1]))
print("held" if lock else "taken", flush=True)
sys.stdin.readline()
"""
LOOK_AT_RUN = """
import sys
from pathlib import Path
from assayline.store.locks import is_worked_on
print("looking", flush=True)
while True:
    is_worked_on(Path(sys.argv[1]))
"""


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    found: EvalSpec = make_spec(engine=FAKE, prompts={"limit": 30}, shard_requests=8)
    return found


def answers_of(run_dir: Path) -> list[str]:
    return [row["request_id"] for row in rows_of(run_dir, "completions")]


def test_database_thread_marks_a_killed_run_as_interrupted_and_leaves_one_at_work(spec, settings):
    killed = begin_and_vanish(spec, settings, 4)
    state = "select state from runs order by started_at"
    assert query(settings, state) == [("running",)]
    working = begin_evaluation(spec.model_copy(update={"name": "at work"}), settings)
    working.prepare()
    DatabaseThread(settings).run(lambda connection: None)  # as any command opens the database
    assert query(settings, state) == [("interrupted",), ("running",)]
    ((message,),) = query(settings, f"select message from runs where run_id = '{killed.run_id}'")
    assert f"`assayline evaluate --resume {killed.run_id}`" in message.partition("hint: ")[2]
    working.abandon("cancelled", "Stopped.")
    resumed = begin_evaluation(spec, settings)
    assert (resumed.run_id, query(settings, state)[0]) == (killed.run_id, ("running",))
    resumed.abandon("cancelled", "Stopped.")


def test_database_thread_takes_the_end_that_only_the_manifest_has(spec, settings):
    left = begin_and_vanish(spec, settings, 4)
    write_manifest(
        left.run_dir, dataclasses.replace(read_manifest(left.run_dir), state="failed", message="The disk was full.")
    )
    DatabaseThread(settings).run(lambda connection: None)
    assert query(settings, "select state, message from runs") == [("failed", "The disk was full.")]


@pytest.mark.parametrize("is_deployed", [True, False], ids=["of a night", "of a person"])
def test_begin_evaluation_leaves_a_run_to_the_kind_of_flow_that_began_it(spec, settings, is_deployed):
    begun = begin_evaluation(spec, settings, is_deployed=is_deployed)
    begun.prepare()
    vanish(begun)
    other = begin_evaluation(spec, settings, is_deployed=not is_deployed)
    assert other.run_id != begun.run_id
    assert f"not resumed, because a {'deployment' if is_deployed else 'command'} began it." in other.notes[0]
    other.abandon("cancelled")
    named = begin_evaluation(spec, settings, begun.run_id, is_deployed=not is_deployed)
    assert (named.run_id, named.manifest.is_deployed) == (begun.run_id, is_deployed)
    named.abandon("cancelled")
    again = begin_evaluation(spec, settings, is_deployed=is_deployed)
    assert again.run_id == begun.run_id
    again.abandon("cancelled")


CAMPAIGNS = [{}, {"kind": "suite", "campaign_id": "s"}, {"kind": "suite", "campaign_id": "t"}, {"campaign_id": "b"}]


@pytest.mark.parametrize("state", ["unfinished", "without its report"])
def test_runs_of_one_spec_are_resumed_by_their_campaign_alone_whatever_others_did_since(spec, settings, state):
    runs = {}
    for number, owner in enumerate(CAMPAIGNS):
        chosen = {"run_id": f"chosen-{number}", "is_measured": owner.get("campaign_id") == "b"} if owner else {}
        begun = begin_evaluation(spec, settings, purpose=Purpose(**owner, **chosen))
        counts = begun.prepare()
        if state == "unfinished":
            answer_some(begun, 4)
            vanish(begun)
        else:
            work(begun)
            begun.finish(counts, lacks_report=True)
            begun.lock.release()
        runs[begun.run_id] = owner
    assert len(runs) == len(CAMPAIGNS)
    for run_id, owner in runs.items():
        purpose = Purpose(**owner, begun=(run_id,) if owner else ())
        plan = plan_run(spec, settings, purpose)
        if state == "unfinished":
            runs_dir = settings.data_dir / "runs"
            found = choose_run(plan.fresh, canonical_json(spec), runs_dir, purpose, is_dry=True).manifest
            assert found and found.run_id == run_id
        else:
            assert find_unreported(plan, settings) == run_id


def test_a_run_that_was_abandoned_says_so_while_it_waits_and_runs_again(spec, settings):
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    answer_some(evaluation, 4)
    evaluation.abandon("cancelled", "KeyboardInterrupt")
    assert evaluation.dispatcher.is_stopped
    manifest = read_manifest(evaluation.run_dir)
    assert (manifest.state, manifest.message, manifest.is_final) == ("cancelled", "KeyboardInterrupt", False)
    assert query(settings, "select state, finished_at is null from runs") == [("cancelled", False)]
    assert describe_left(evaluation.run_dir, manifest) == "4 of 30 requests answered"
    ends = (KeyboardInterrupt(), EngineDiedError("…", Death("start")), SpecError("no such argument"))
    told = [describe_way_on(evaluation.run_dir, manifest, end, AUTO) for end in ends]
    hint = f"Run {manifest.run_id} is unfinished, 4 of 30 requests answered. hint: rerun the command to resume it."
    assert told == [hint, hint, None]
    assert "--resume" in str(describe_way_on(evaluation.run_dir, manifest, KeyboardInterrupt(), NEVER))
    again = begin_evaluation(spec, settings)
    assert read_manifest(again.run_dir).state == "running"
    assert query(settings, "select state, finished_at is null, attempt from runs") == [("running", True, 2)]


def test_completed_runs_those_older_and_never_mean_a_new_run(spec, settings):
    old = begin_and_vanish(spec, settings, 2)
    first = complete(spec, settings, "never")
    second = begin_and_vanish(spec, settings, 2)
    third = begin_evaluation(spec, settings, "never")
    assert third.notes == [] and len({old.run_id, first.run_id, second.run_id, third.run_id}) == 4
    assert complete(spec, settings, old.run_id).run_id == old.run_id, "by its name it goes on"


def test_another_spec_of_the_same_name_is_a_new_run_and_the_fields_are_named(make_spec, spec, settings):
    before = begin_and_vanish(spec, settings, 2)
    warmer = make_spec(
        engine=FAKE, prompts={"limit": 30}, shard_requests=8, sampling={"temperature": 0.7, "top_p": 0.9}
    )
    evaluation = begin_evaluation(warmer, settings)
    assert evaluation.run_id != before.run_id and evaluation.manifest.attempt == 1
    [note] = evaluation.notes
    assert f"Run {before.run_id} of this name is unfinished" in note
    assert "sampling.temperature: 0 → 0.7; sampling.top_p: unset → 0.9" in note
    assert note.endswith("Starting a new run.")
    other = make_spec(name="other", engine=FAKE, prompts={"limit": 3})
    assert begin_evaluation(other, settings).notes == []


def test_a_run_that_is_resumed_is_not_called_a_new_one(make_spec, spec, settings):
    """An unfinished run of another spec lies between: it says nothing of the one that is resumed."""
    before = begin_and_vanish(spec, settings, 2)
    begin_and_vanish(make_spec(engine=FAKE, prompts={"limit": 20}, shard_requests=8), settings, 1)
    evaluation = begin_evaluation(spec, settings)
    assert evaluation.run_id == before.run_id
    assert evaluation.notes == [f"Resuming run {before.run_id}, attempt 2: 2 of 30 requests are already answered."]


@pytest.fixture
def own_files(make_spec: Any, tiny_model: Path, tmp_path: Path) -> Any:
    """A spec whose prompt file and model folder can be changed."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors" and file.is_file():
            (model / file.name).write_bytes(file.read_bytes())
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(f'{{"question": "{i} + 1?"}}\n' for i in range(20)))
    source = {"source": {"kind": "file", "path": str(prompts)}, "columns": {}}
    return make_spec(model=str(model), engine=FAKE, prompts=source, shard_requests=8), model, prompts


@pytest.mark.parametrize("changed", ["prompts", "model"])
def test_changed_files_are_a_new_run_and_an_error_for_a_named_one(own_files, settings, changed):
    spec, model, prompts = own_files
    before = begin_and_vanish(spec, settings, 2)
    if changed == "prompts":
        prompts.write_text(prompts.read_text().replace("1?", "2?"))
        expected = f"the content of {prompts}"
    else:
        (model / "generation_config.json").write_text('{"eos_token_id": 7}')
        expected = f"the files of the model {model}: sha256:"
    with pytest.raises(SpecError, match=re.escape(expected)) as caught:
        begin_evaluation(spec, settings, before.run_id)
    assert f"Run {before.run_id} cannot be resumed" in str(caught.value) and "--fresh" in str(caught.value)
    evaluation = begin_evaluation(spec, settings)
    assert evaluation.run_id != before.run_id
    assert expected in evaluation.notes[0]


def test_a_named_run_that_does_not_fit_is_an_error_that_says_why(make_spec, spec, settings):
    before = begin_and_vanish(spec, settings, 2)
    with pytest.raises(SpecError, match=rf"is not in .*nearest: {before.run_id}"):
        begin_evaluation(spec, settings, before.run_id[:-1])
    with pytest.raises(SpecError, match=r"differences from its start: prompts\.limit: 30 → 3"):
        begin_evaluation(make_spec(engine=FAKE, prompts={"limit": 3}, shard_requests=8), settings, before.run_id)
    evaluation = begin_evaluation(spec, settings, before.run_id)
    with pytest.raises(SpecError, match=r"is in use by process \d+ on .*wait for that process"):
        begin_evaluation(spec, settings, before.run_id)
    counts = evaluation.prepare()
    work(evaluation)
    evaluation.finish(counts)
    with pytest.raises(SpecError, match=r"is completed: .*--fresh"):
        begin_evaluation(spec, settings, before.run_id)


def test_part_files_of_another_version_are_not_gone_on_with(spec, settings):
    before = begin_and_vanish(spec, settings, 2)
    write_manifest(before.run_dir, dataclasses.replace(before.manifest, table_version=0, assayline_version="0.0.1"))
    with pytest.raises(SpecError, match=r"version of its part files: 0 → \d+ \(assayline 0\.0\.1 can resume it\)"):
        begin_evaluation(spec, settings, before.run_id)
    [note] = begin_evaluation(spec, settings).notes
    assert f"Run {before.run_id} of this name is unfinished but cannot be resumed" in note


def test_begin_evaluation_notes_an_unfinished_run_that_cannot_be_resumed_if_it_has_answers(spec, settings):
    changed = [spec.model_copy(update={"sampling": {"max_tokens": tokens}}) for tokens in (7, 8)]
    begin_and_vanish(spec, settings, 0)
    assert begin_evaluation(changed[0], settings).notes == []
    begin_and_vanish(spec, settings, 1)
    [note] = begin_evaluation(changed[1], settings).notes
    assert "is unfinished but cannot be resumed; differences: sampling" in note


def test_two_flows_with_one_spec_are_two_runs(spec, settings):
    first = begin_evaluation(spec, settings)
    second = begin_evaluation(spec, settings)
    assert first.run_id != second.run_id
    assert re.match(rf"Run {first.run_id} of this spec is in use by process \d+ on ", second.notes[0])
    for evaluation in (first, second):
        evaluation.prepare()
        work(evaluation)
        evaluation.writer.flush()
        vanish(evaluation)
    answered = [answers_of(evaluation.run_dir) for evaluation in (first, second)]
    assert [len(set(requests)) for requests in answered] == [30, 30] and set(answered[0]) == set(answered[1])


def test_a_process_that_is_killed_frees_its_run(tmp_path):
    process = start_python(HOLD_RUN, tmp_path)
    assert read_line(process) == "held"
    assert lock_run(tmp_path) is None and is_worked_on(tmp_path)
    process.kill()
    process.communicate()
    assert not is_worked_on(tmp_path)
    lock = lock_run(tmp_path)
    assert lock is not None
    lock.release()


def test_lock_run_succeeds_while_another_process_looks_at_the_run(tmp_path):
    (tmp_path / "flow.lock").touch()
    process = start_python(LOOK_AT_RUN, tmp_path)
    try:
        assert read_line(process) == "looking"
        refused = 0
        for _ in range(1_000):
            lock = lock_run(tmp_path)
            refused += lock is None
            if lock:
                lock.release()
        assert refused == 0
    finally:
        process.kill()
        process.communicate()


def test_a_pipe_with_other_prompts_is_found_out_and_the_next_run_is_new(make_spec, settings):
    rows = [{"question": f"{i} + 1?"} for i in range(20)]

    def spec_of(count: int) -> EvalSpec:
        source = {"kind": "inline", "rows": rows[:count]}
        found: EvalSpec = make_spec(engine=FAKE, prompts={"source": source, "columns": {}}, shard_requests=8)
        return found

    before = begin_and_vanish(spec_of(20), settings, 2)
    for changed in (rows[::-1], rows[:10]):
        forget_counts(before.run_dir)
        evaluation = begin_evaluation(spec_of(20), settings)
        assert evaluation.run_id == before.run_id
        source = parse_spec({"model": "x", "prompts": {"source": {"kind": "inline", "rows": changed}}}).prompts.source
        evaluation.spec = evaluation.spec.model_copy(
            update={"prompts": evaluation.spec.prompts.model_copy(update={"source": source})}
        )
        with pytest.raises(PromptsChangedError, match=f"changed since run {before.run_id} began: .*--fresh"):
            evaluation.prepare()
        evaluation.abandon("failed")
        assert read_manifest(before.run_dir).is_final
    assert begin_evaluation(spec_of(20), settings).run_id != before.run_id


def forget_counts(run_dir: Path) -> None:
    """As if the run had been killed before its prompts were all read."""
    write_manifest(run_dir, dataclasses.replace(read_manifest(run_dir), prompts=None, is_final=False))


def test_too_many_errors_fail_the_run_for_good(make_spec, settings):
    rows = [{"question": "1 + 1 " * 500}] * 3 + [{"question": "2 + 2?"}]
    prompts = {"source": {"kind": "inline", "rows": rows}, "columns": {}}
    spec = make_spec(engine=FAKE, prompts=prompts)
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    work(evaluation)
    with pytest.raises(RunFailedError, match=r"3 error rows among 4 .*0\.5 .*: prompt_too_long 3\. .*--fresh"):
        evaluation.finish(counts)
    evaluation.abandon("failed", "the flow failed")  # as the flow does after any error
    manifest = read_manifest(evaluation.run_dir)
    assert (manifest.state, manifest.is_final) == ("failed", True)
    assert "prompt_too_long 3" in str(manifest.message)
    assert query(settings, "select state, (select count(*) from completions) from runs") == [("failed", 4)]
    assert describe_way_on(evaluation.run_dir, manifest, KeyboardInterrupt(), AUTO) is None
    with pytest.raises(SpecError, match=r"cannot be resumed: .*prompt_too_long 3"):
        begin_evaluation(spec, settings, evaluation.run_id)
    assert begin_evaluation(spec, settings).run_id != evaluation.run_id


def test_a_damaged_part_stops_a_resume_and_the_run_stays_as_it_was(spec, settings):
    before = begin_and_vanish(spec, settings, 8, 2)
    part = part_of(before, "completions", "killed-shard-000001")
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(StoreError, match=rf"killed-shard-000001.*assayline db rebuild {before.run_id} --set-aside"):
        begin_evaluation(spec, settings)
    assert read_manifest(before.run_dir).attempt == 1
    assert not is_worked_on(before.run_dir)


def test_read_shard_names_the_shard_when_it_is_damaged(tmp_path):
    part = write_part(tmp_path / "run", "requests", "shard-000000", [request_of(number) for number in range(9)])
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"shard-000000\.parquet cannot be read: .* db rebuild run --set-aside"):
        list(read_shard(part))


def test_run_rejects_a_data_or_runs_folder_that_cannot_be_created(spec, settings, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "data", Path("/proc/data")):
        with pytest.raises(StoreError, match="ASSAYLINE_DATA_DIR"):
            begin_evaluation(spec, settings.model_copy(update={"data_dir": folder}))
    settings.data_dir.mkdir()
    (settings.data_dir / "runs").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match=r"flow\.lock cannot be made or taken: .*ASSAYLINE_DATA_DIR"):
        begin_evaluation(spec, settings)


def test_survey_answers_separates_shards(tmp_path, settings):
    """Sixty shards of 50, half of them answered whole and one in part."""
    run_dir = tmp_path / "run"
    for shard in range(60):
        requests = [request_of(shard * 50 + number) for number in range(50)]
        write_part(run_dir, "requests", f"shard-{shard:06d}", requests)
        answered = requests if shard < 30 else requests[:10] if shard == 30 else []
        if answered:
            write_part(run_dir, "completions", f"part-{shard}", [completion_of(r.request_id) for r in answered])
    with connect(settings.database_path, 10) as connection:
        answers = survey_answers(connection, "run", run_dir)
    assert answers.answered == 1_510 and answers.prepared_requests == 3_000
    assert sorted(answers.whole_shards) == [f"shard-{shard:06d}" for shard in range(30)]
    assert answers.partly == {"shard-000030": {f"request-{1_500 + number:05d}" for number in range(10)}}
    assert answers.strays == frozenset() and answers.first_generations == {"worker-0": 1}


def test_resumed_run_names_the_slurm_job_of_its_last_attempt(spec, settings, monkeypatch):
    for job in ("4711", "4712"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        run_dir = begin_and_vanish(spec, settings, 3).run_dir
        assert read_manifest(run_dir).job == {"SLURM_JOB_ID": job}
    assert read_manifest(run_dir).attempt == 2

"""`assayline list runs`, and runs that a command line names by the beginning of their id or as `last`."""

import json
import shutil
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from run_kit import FAKE, begin_and_vanish, complete, settings_in

from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.locks import lock_run

Runs = tuple[str, str]


@pytest.fixture(scope="module")
def made(make_spec: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    """A data folder with a completed run, and a newer one that was killed."""
    settings = settings_in(tmp_path_factory.mktemp("runs"))
    spec: EvalSpec = make_spec(engine=FAKE, prompts={"limit": 4}, sampling={"max_tokens": 2})
    done = complete(spec, settings).run_id
    killed = begin_and_vanish(make_spec(name="tonight", engine=FAKE, prompts={"limit": 4}), settings, 1).run_id
    return settings.data_dir, (done, killed)


@pytest.fixture
def runs(made: tuple[Path, Runs], settings: Settings) -> Runs:
    folder, runs = made
    shutil.copytree(folder, settings.data_dir)
    return runs


def list_here(*arguments: str) -> list[str]:
    shown = flow_kit.run_here("list runs", *arguments)
    assert shown.code == 0, shown.err
    return shown.out.splitlines()


def test_runs_lists_the_newest_first_uncut(runs, capsys):
    done, killed = runs
    head, first, second = list_here()
    assert head.split() == ["id", "name", "model", "purpose", "state", "accuracy", "output", "tokens/s", "age"]
    assert first.split()[:5] == [killed, "tonight", "tiny-model", "evaluate", "interrupted"]
    assert second.split()[0] == done and second.split()[4] == "completed"
    assert second.split()[5] != "–" and second.split()[6] != "–", "accuracy and tokens/s are in the database"
    assert [line.split()[0] for line in list_here("--limit", "1")] == ["id", killed]
    assert [line.split()[0] for line in list_here("tonight")] == ["id", killed]


def test_runs_as_json_has_plain_values(runs):
    found = json.loads("\n".join(list_here("--json")))
    assert [run["run_id"] for run in found] == [runs[1], runs[0]]
    figures = {"accuracy", "output_tokens_per_s"}
    words = {"run_id", "name", "model", "prompt_set", "purpose", "state", "tags", "note", "started_at"}
    assert set(found[1]) == words | figures
    assert isinstance(found[1]["output_tokens_per_s"], float) and found[0]["accuracy"] is None


def test_runs_reads_the_folders_when_the_database_is_held(runs, settings):
    with flow_kit.database_held(settings.data_dir) as (pid, _):
        shown = flow_kit.run_here("list runs")
    assert shown.code == 0
    assert "Accuracy and tokens/s are left out: " in shown.err and f"process {pid}" in shown.err
    assert [line.split()[4] for line in shown.out.splitlines()[1:]] == ["interrupted", "completed"]


def test_runs_command_rejects_an_unknown_name_and_lists_nothing_without_runs(runs, monkeypatch, tmp_path):
    unknown = flow_kit.run_here("list runs", "tonihgt")
    assert unknown.code == 2 and "No run with the name 'tonihgt'" in unknown.err
    assert "did you mean 'tonight'?" in unknown.err
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "nothing"))
    assert list_here("tonight") == [f"No runs in {tmp_path / 'nothing' / 'runs'} yet."]


@pytest.mark.parametrize(
    "words",
    [
        ["score", "RUN", "--scorer", "numeric", "--dry-run"],
        ["export", "RUN", "--format", "lm-eval", "--force"],
        ["db rebuild", "RUN"],
        ["baseline", "pin", "good", "RUN"],
        ["report", "RUN"],
    ],
)
def test_every_command_accepts_a_unique_prefix_of_a_run_id(runs, words):
    done, killed = runs
    ambiguous = flow_kit.run_here(*["20" if word == "RUN" else word for word in words])
    assert ambiguous.code == 2
    assert f"Run id '20' is ambiguous: 2 runs begin with it, the newest are {killed}, {done}." in ambiguous.err


def test_the_beginning_of_a_run_id_names_the_run(runs, settings):
    done, killed = runs
    shared = next(end for end in range(len(done)) if done[:end] != killed[:end]) - 1
    for given in (done[: shared + 1], done[:-1]):
        exported = flow_kit.run_here("export", given, "--format", "lm-eval", "--force")
        assert exported.code == 0 and done in exported.out, exported.err


def test_last_is_the_newest_run_and_is_named(runs, settings):
    done, killed = runs
    dry = flow_kit.run_here("evaluate", "--resume", "last", "--dry-run")
    assert dry.code == 0 and f"This would resume run {killed}: 1 of 4 requests answered" in dry.out, dry.err
    assert f"The last run is {killed}, whose state is interrupted, and the last completed one {done}." in dry.err
    lock = lock_run(settings.run_dir(killed))
    shown = flow_kit.run_here("report", "last")
    lock.release()
    assert f"The last run is {killed}, whose state is running, and the last completed one {done}." in shown.err


def test_tags_and_note_are_in_lists_in_sql_and_in_a_copied_folder(runs, settings, tmp_path, monkeypatch):
    done = runs[0]
    for words in (["+ci", "+hot", "+model:v2"], ["-hot"], ["--note", "the new kernel"]):
        assert flow_kit.run_here("tag", done, *words).code == 0
    assert flow_kit.run_here("tag", done).out.splitlines() == [f"{done}: ci, model:v2", "Note: the new kernel"]
    asked = "select tags, note from main.run where list_contains(tags, 'ci')"
    assert flow_kit.query(settings.data_dir, asked) == [(["ci", "model:v2"], "the new kernel")]
    assert list_here("--tag", "ci")[1].split()[0] == done and len(list_here("--tag", "ci")) == 2
    bad = flow_kit.run_here("tag", done, "+two words")
    assert bad.code == 2 and "'two words' is not a valid tag" in bad.err
    copied = tmp_path / "copied" / "runs" / done
    shutil.copytree(settings.run_dir(done), copied)
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "copied"))
    assert flow_kit.run_here("db rebuild", "--all").code == 0
    assert flow_kit.query(tmp_path / "copied", asked) == [(["ci", "model:v2"], "the new kernel")]
    lock = lock_run(copied)
    assert lock is not None
    busy = flow_kit.run_here("tag", done, "+late")
    lock.release()
    assert busy.code == 6 and f"Run {done} is in use by" in busy.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--state", "interrupted"], ["tonight"]),
        (["--model", "TINY"], ["tonight", "test"]),
        (["--text", "TONI"], ["tonight"]),
        (["--since", "2d", "--state", "completed"], ["test"]),
        (["--since", "2000-01-01"], ["tonight", "test"]),
        (["--since", "2999-01-01"], []),
        (["--tag", "unknown"], []),
    ],
)
def test_runs_are_filtered(runs, words, expected):
    found = [run["name"] for run in json.loads("\n".join(list_here("--json", *words)))]
    assert found == expected

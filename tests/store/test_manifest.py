"""A run's manifest: complete or absent, with an error for each defect."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from run_kit import manifest_of, start_python, wait_for

from assayline.clock import RunClock
from assayline.errors import SpecError, StoreError
from assayline.files import replace_file
from assayline.flows.cli.words import complete_run_id
from assayline.run.resume import digest_inputs, list_input_changes
from assayline.settings import Settings
from assayline.spec.identity import list_changes
from assayline.store.manifest import (
    MANIFEST_NAME,
    PromptCounts,
    find_run,
    list_manifests,
    list_run_ids,
    match_run_id,
    read_manifest,
    write_manifest,
)

WRITE_FOREVER = """
import dataclasses, sys
from pathlib import Path
from assayline.store.manifest import read_manifest, write_manifest
run_dir = Path(sys.argv[1])
manifest = read_manifest(run_dir)
while True:
    manifest = dataclasses.replace(manifest, attempt=manifest.attempt + 1, message="x" * 20000)
    write_manifest(run_dir, manifest)
"""


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"prompts": PromptCounts(4, 1, 8, 2, 3), "template_id": "t", "state": "completed", "finished_at": "2026-01-01"},
        {"message": "naïve 日本 “quoted”\n", "attempt": 7, "is_final": True},
    ],
)
def test_a_manifest_comes_back_as_it_was(tmp_path, values):
    write_manifest(tmp_path, manifest_of(**values))
    assert read_manifest(tmp_path) == manifest_of(**values)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_a_manifest_of_a_newer_version_with_more_in_it_can_be_read(tmp_path):
    write_manifest(tmp_path, manifest_of())
    data = json.loads((tmp_path / MANIFEST_NAME).read_text())
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({**data, "surprise": 1}))
    assert read_manifest(tmp_path) == manifest_of()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run_id": "x"}', '{"clock": 1, "prompts": null}'])
def test_read_manifest_rejects_a_damaged_file(tmp_path, text):
    (tmp_path / MANIFEST_NAME).write_text(text)
    with pytest.raises(StoreError, match=r"Manifest \S*run\.json cannot be read: .*restore it from"):
        read_manifest(tmp_path)


def test_read_manifest_rejects_a_folder_without_a_manifest(tmp_path):
    with pytest.raises(StoreError, match=r"has no run\.json"):
        read_manifest(tmp_path)


def test_a_writer_killed_at_any_moment_leaves_a_whole_manifest(tmp_path):
    write_manifest(tmp_path, manifest_of())
    for _ in range(5):
        before = read_manifest(tmp_path).attempt
        process = start_python(WRITE_FOREVER, tmp_path)
        wait_for(lambda before=before: read_manifest(tmp_path).attempt > before)
        process.kill()
        process.communicate()
        assert read_manifest(tmp_path).attempt > before


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    replace_file(tmp_path / "file", lambda file: file.write(b"old"))

    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "file", fail)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("folder", ["/proc/none", "below-a-file"])
def test_write_manifest_rejects_a_folder_that_cannot_be_created(tmp_path, folder):
    (tmp_path / "below-a-file").write_text("")
    with pytest.raises(StoreError, match=r"Cannot write .*run\.json: .*results stored so far are kept"):
        write_manifest(tmp_path / folder / "run", manifest_of())


def test_manifests_are_listed_newest_first_and_damaged_ones_left_out(tmp_path):
    for number, started_s in enumerate([5.0, 9.0, 7.0]):
        clock = RunClock(started_s, 0.0, "boot")
        write_manifest(tmp_path / f"run-{number}", dataclasses.replace(manifest_of(f"run-{number}"), clock=clock))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / MANIFEST_NAME).write_text("{")
    (tmp_path / "no-run").mkdir()
    assert [manifest.run_id for manifest in list_manifests(tmp_path)] == ["run-1", "run-2", "run-0"]
    assert list_manifests(tmp_path / "missing") == []


def test_an_unknown_run_is_answered_with_the_nearest(tmp_path):
    for name in ("20260101-000000-sums-ab12", "20260102-000000-sums-cd34", "20260103-000000-other-ef56"):
        (tmp_path / name).mkdir()
    assert find_run(tmp_path, "20260101-000000-sums-ab12").name == "20260101-000000-sums-ab12"
    with pytest.raises(
        SpecError, match=r"Run '20260101-000000-sums-ab13' is not in .*nearest: 20260101-000000-sums-ab12"
    ):
        find_run(tmp_path, "20260101-000000-sums-ab13")
    with pytest.raises(SpecError, match="newest: 20260103-000000-other-ef56"):
        find_run(tmp_path, "?")
    with pytest.raises(SpecError, match=r"Run '\.\.' is not in"):
        find_run(tmp_path, "..")
    with pytest.raises(SpecError, match="newest: none yet"):
        find_run(tmp_path / "missing", "x")


def test_of_runs_that_began_in_one_second_the_last_is_the_one_that_began_last(tmp_path):
    for number, name in enumerate(("20260101-000000-b", "20260101-000000-a", "20251231-235959-c")):
        began = dataclasses.replace(
            manifest_of(name), clock=dataclasses.replace(manifest_of().clock, started_wall_s=number)
        )
        write_manifest(tmp_path / name, began)
    (tmp_path / "20260101-000000-d").mkdir()
    found = list_run_ids(tmp_path)
    assert len(found) == 4 and found[-1] == "20251231-235959-c"
    assert match_run_id("last", found) == "20260101-000000-a"


def test_complete_run_id_takes_the_run_that_began_last_though_the_clock_was_set_back(tmp_path):
    clocks = {
        "20260101-000000-a-aaaa": RunClock(1_767_225_600.0, 9000.0, "an earlier boot"),
        "20260102-120000-a-bbbb": RunClock(1_767_355_200.0, 10.0, "boot"),
        "20260102-110000-a-cccc": RunClock(1_767_351_600.0, 20.0, "boot"),  # an hour back
        "20260102-113000-a-dddd": RunClock(1_767_353_400.0, 0.0, "unknown"),  # imported
    }
    for run_id, clock in clocks.items():
        write_manifest(tmp_path / "runs" / run_id, dataclasses.replace(manifest_of(run_id), clock=clock))
    listed = [run.run_id[-4:] for run in list_manifests(tmp_path / "runs")]
    assert listed == ["cccc", "bbbb", "dddd", "aaaa"]
    assert complete_run_id("last", Settings(data_dir=tmp_path)) == "20260102-110000-a-cccc"


def test_match_run_id_takes_an_id_its_beginning_or_last():
    newest_first = ["20260103-000000-other-ef56", "20260101-000001-sums-ab12", "20260101-000000-sums-ab12"]
    assert match_run_id("20260101-000000-sums-ab12", newest_first) == newest_first[2]
    assert match_run_id("20260103", newest_first) == match_run_id("last", newest_first) == newest_first[0]
    assert [match_run_id(given, newest_first) for given in ("2027", "", "sums")] == [None] * 3
    assert match_run_id("last", []) is None
    with pytest.raises(SpecError, match=r"'20260101' is ambiguous: 2 runs .*newest are 20260101-000001-sums-ab12, "):
        match_run_id("20260101", newest_first)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": {"b": 0}}, {"a": {"b": 0.7}}, ["a.b: 0 → 0.7"]),
        ({"a": 0}, {"a": 0.0}, []),
        ({"a": 1}, {"a": True}, ["a: 1 → true"]),
        ({"a": {}}, {"a": {"b": None}}, ["a.b: unset → null"]),
        ({"a": {"b": 1}}, {"a": "x"}, ['a: {"b": 1} → "x"']),
        ({"rows": [{"q": 1}, {"q": 2}]}, {"rows": [{"q": 1}, {"q": 3}]}, ["rows.1.q: 2 → 3"]),
        ({"stop": ["a"]}, {"stop": ["a", "b"]}, ['stop: ["a"] → ["a", "b"]']),
    ],
)
def test_changes_of_a_spec_are_named_by_field(before, after, expected):
    assert list_changes(before, after) == expected


def test_many_and_long_changes_are_cut():
    before = {f"f{number:02d}": "x" * 500 for number in range(20)}
    lines = list_changes(before, {})
    assert len(lines) == 9 and lines[-1] == "and 12 more"
    assert all(len(line) < 100 for line in lines)


def test_inputs_are_the_content_of_files(make_spec, tmp_path):
    for name in ("a.jsonl", "b.jsonl", "few.json", "chat.jinja"):
        (tmp_path / name).write_text(f'{{"question": "{name}"}}\n')
    examples = {"kind": "file", "path": str(tmp_path / "few.json")}
    source = {"kind": "file", "path": str(tmp_path / "*.jsonl")}
    prompts = {"source": source, "columns": {}, "few_shot": {"count": 1, "source": examples}}
    spec = make_spec(prompts=prompts, chat={"template": str(tmp_path / "chat.jinja")})
    before = digest_inputs(spec)
    assert {Path(name).name for name in before} == {"a.jsonl", "b.jsonl", "few.json", "chat.jinja"}
    assert digest_inputs(spec) == before
    (tmp_path / "b.jsonl").write_text('{"question": "c"}\n')
    (tmp_path / "a.jsonl").rename(tmp_path / "d.jsonl")
    changes = {"the content of {}": "b.jsonl", "{} is gone": "a.jsonl", "{} is new": "d.jsonl"}
    found = [words.format(tmp_path / name) for words, name in changes.items()]
    assert list_input_changes(before, digest_inputs(spec)) == found


def test_a_pipe_and_a_hub_dataset_have_no_digest(make_spec, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert digest_inputs(make_spec(prompts={"source": {"kind": "file", "path": str(tmp_path / "pipe.jsonl")}})) is None
    assert digest_inputs(make_spec(prompts={"source": {"kind": "hub", "dataset": "org/name"}})) is None
    assert digest_inputs(make_spec(prompts={"source": {"kind": "file", "path": "missing.jsonl"}})) is None
    assert list_input_changes(None, None) == [] and list_input_changes(None, {}) != []

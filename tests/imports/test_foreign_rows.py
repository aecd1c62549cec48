"""Files of other tools as nobody should write them: repeated, cut, torn, killed half-way, or with impossible values.

Whatever a file holds, its requests count once and as the file counts them, or it is one error with a hint.
"""

import json
import math
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_kit

from assayline.comparison.gate import judge_run
from assayline.errors import ComparisonError, PromptError, StoreError
from assayline.flows.cli import run
from assayline.imports.make import Names, import_files
from assayline.run.rebuild import rebuild_run
from assayline.settings import Settings
from assayline.store.thread import DatabaseThread

FILES = Path(__file__).resolve().parents[1] / "fixtures" / "imports"
SAMPLE = {
    "epoch": 1,
    "target": "1",
    "output": {"choices": [{"message": {"content": "1"}, "stop_reason": "stop"}], "usage": {"input_tokens": 3}},
}
Edit = Callable[[Any], object]


def add(settings: Settings, kind: str, *paths: Path, machine: str | None = None) -> Any:
    (outcome,) = import_files(settings, kind, list(paths), Names(machine=machine))
    return outcome


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def write_log(path: Path, values: list[Any], edit: Edit = lambda log: None, **sample: Any) -> Path:
    """Write a log of Inspect with a sample per score."""
    scores = [{"match": {"value": value, "answer": "1", "explanation": "e"}} for value in values]
    samples = [{"id": f"s{n}", "input": f"Question {n}", **SAMPLE, "scores": one} for n, one in enumerate(scores)]
    log: dict[str, Any] = {
        "eval": {"model": "org/model", "task": "task", "created": "2026-01-01T10:00:00", "packages": {}},
        "samples": [{**one, **sample} for one in samples],
    }
    edit(log)
    path.write_text(json.dumps(log))
    return path


def change(kind: str, edit: Edit) -> Callable[[Path], Path]:
    """Return a function that writes an edited copy of an example into a folder."""

    def write(folder: Path) -> Path:
        data = json.loads((FILES / f"{kind}.json").read_text())
        edit(data)
        path = folder / f"{Path(kind).name}.json"
        path.write_text(json.dumps(data))
        return path

    return write


def repeat_eee(folder: Path) -> Path:
    log = json.loads((FILES / "eee" / "choices.json").read_text())
    lines = (FILES / "eee" / "choices_samples.jsonl").read_text()
    log["detailed_evaluation_results"]["total_rows"] = 2 * lines.count("\n")
    (folder / "choices_samples.jsonl").write_text(lines * 2)
    (folder / "choices.json").write_text(json.dumps(log))
    return folder / "choices.json"


def repeat_lm_eval(folder: Path) -> Path:
    results = min((FILES / "lm_eval").glob("results_*"))
    for samples in results.parent.glob(f"samples_*{results.stem.removeprefix('results_')}.jsonl"):
        (folder / samples.name).write_text(samples.read_text() * 2)
    data = json.loads(results.read_text())
    del data["n-samples"]
    (folder / results.name).write_text(json.dumps(data))
    return folder / results.name


@pytest.mark.parametrize(
    ("kind", "original", "write"),
    [
        ("inspect", "inspect.json", change("inspect", lambda log: log["samples"].extend(log["samples"]))),
        ("eee", "eee/choices.json", repeat_eee),
        ("lm-eval", "lm_eval/results_2026-11-27T17-27-22.171738.json", repeat_lm_eval),
    ],
)
def test_repeated_rows_count_once_and_a_note_counts_them(settings, tmp_path, kind, original, write):
    first, outcome = (add(settings, kind, path) for path in (FILES / original, write(tmp_path)))
    values = "metric in ('accuracy', 'ok_requests', 'expected_requests', 'missing_requests') and value is not null"
    counted = "select list((metric, detail, n, value) order by metric, detail) from metric_value"
    one, other = run_kit.query(settings, f"{counted} where {values} group by run_id")
    assert one == other and len(one[0]) > 3
    assert not any("repeated" in note for note in first.notes) and any(
        "repeated" in note and "score" in note for note in outcome.notes
    )


@pytest.mark.parametrize("odd", [math.nan, [1, 2], "no verdict"])
def test_a_value_without_a_score_leaves_the_others(settings, tmp_path, odd):
    add(settings, "inspect", write_log(tmp_path / "log.json", ["C", odd, "I", "C"]))
    assert run_kit.query(settings, "select count(*), avg(value) from scores") == [(3, pytest.approx(2 / 3))]
    assert run_kit.query(settings, "select ok_requests from run") == [(4,)]


@pytest.mark.parametrize("place", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("kind", ["inspect", "vllm-bench"])
def test_a_time_without_an_offset_is_utc_on_every_machine(settings, tmp_path, monkeypatch, kind, place):
    path = write_log(tmp_path / "log.json", ["C"]) if kind == "inspect" else FILES / "vllm_bench.json"
    monkeypatch.setenv("TZ", place)
    time.tzset()
    try:
        run_id = add(settings, kind, path).run.run_id
    finally:
        monkeypatch.undo()
        time.tzset()
    assert run_id.startswith("20260101-100000" if kind == "inspect" else "20261127-173354")


def write_zip(compression: int = zipfile.ZIP_DEFLATED, damage: Callable[[bytearray], object] = bytes, blanks: int = 0):
    def write(folder: Path) -> Path:
        path = folder / "log.eval"
        with zipfile.ZipFile(path, "w", compression) as archive:
            header = {"eval": {"model": "m", "task": "t", "created": "2026-01-01T00:00:00Z"}}
            archive.writestr("header.json", json.dumps(header))
            with archive.open("samples/1.json", "w") as member:
                for _ in range(blanks):
                    member.write(b" " * 2**20)
                member.write(json.dumps({"id": 1, "input": "q", **SAMPLE}).encode())
        content = bytearray(path.read_bytes())
        damage(content)
        path.write_bytes(content)
        return path

    return write


def tear(content: bytearray) -> None:
    place = content.find(b"samples/1.json") + 16
    content[place : place + 8] = b"\xff" * 8


def encrypt(content: bytearray) -> None:
    content[6] |= 1
    content[content.find(b"PK\1\2") + 8] |= 1


def use_unknown_method(content: bytearray) -> None:
    content[8] = content[content.find(b"PK\1\2") + 10] = 9


def inspect(edit: Edit = lambda log: None, **sample: Any) -> Callable[[Path], Path]:
    return lambda folder: write_log(folder / "log.json", ["C", "I"], edit, **sample)


def deep(folder: Path) -> Path:
    (folder / "deep.json").write_text("[" * 100_000)
    return folder / "deep.json"


REFUSED: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "no model": ("inspect", inspect(lambda log: log["eval"].update(model="")), "does not name a model"),
    "year 1": ("inspect", inspect(lambda log: log["eval"].update(created="0001-01-01T00:00:00")), "0001-01-01"),
    "tokens as text": ("inspect", inspect(output={"usage": {"input_tokens": "3"}}), "answer 1: prompt_tokens is '3'"),
    "tokens below 0": ("inspect", inspect(output={"usage": {"output_tokens": -3e9}}), "output_tokens is -3"),
    "error without text": ("inspect", inspect(error={"message": {"a": 1}}), "error_message is {'a': 1}, expected str"),
    "nested": ("inspect", deep, "recursion"),
    "too many": ("inspect", inspect(lambda log: log.update(results={"total_samples": 1})), "is 1, and 2 are"),
    "torn zip": ("inspect", write_zip(damage=tear), "Error -3"),
    "encrypted": ("inspect", write_zip(damage=encrypt), "encrypted"),
    "unknown method": ("inspect", write_zip(damage=use_unknown_method), "compression method"),
    "bomb": ("inspect", write_zip(blanks=256), "samples/1.json has 268,435,[0-9]+ bytes"),
    "completed": ("vllm-bench", change("vllm_bench", lambda data: data.update(completed=11)), "11, and 12"),
    "infinite": ("vllm-bench", change("vllm_bench", lambda data: data.update(duration=math.inf)), "-inf"),
    "none": ("vllm-bench", change("vllm_bench", lambda data: [data.update({k: []}) for k in VECTORS]), "no requests"),
    "milliseconds": (
        "guidellm",
        change("guidellm", lambda data: data["benchmarks"][0].update(start_time=1767225600000)),
        "1767225600000",
    ),
}
PARTIAL: dict[str, tuple[str, Callable[[Path], Path], int, str]] = {
    "cut": ("inspect", inspect(lambda log: log.update(results={"total_samples": 2340})), 2340, "2 of 2,340 requests"),
    "cancelled": ("inspect", inspect(lambda log: log.update(status="cancelled")), 2, "its status is cancelled"),
    "asked for more": (
        "inspect",
        inspect(lambda log: (log.update(status="error"), log["eval"].update(dataset={"sample_ids": [1, 2, 3]}))),
        3,
        "2 of 3 requests are in the file",
    ),
    "header alone": (
        "inspect",
        inspect(lambda log: (log.pop("samples"), log.update(results={
            "total_samples": 2340, "completed_samples": 1,
            "scores": [{"name": "match", "metrics": {"accuracy": {"value": 1.0}}}],
        }))),
        2340,
        "1 of 2,340 samples is in the file",
    ),
    "without failed requests": (
        "vllm-bench",
        change("totals/serve", lambda data: (data.pop("failed"), data.update(completed=11))),
        0,
        "11 of 12 requests are in the file",
    ),
    "sampled": (
        "guidellm",
        change("guidellm", lambda data: (
            data["benchmarks"][0]["metrics"]["request_totals"].update(total=300), data["benchmarks"].pop()
        )),
        300,
        "6 of 300 requests",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTIAL)
def test_a_partial_file_is_stored_as_such_and_no_gate_passes_it(settings, tmp_path, name):
    kind, write, expected, reason = PARTIAL[name]
    outcome = add(settings, kind, write(tmp_path))
    assert (outcome.run.state, outcome.run.prompts.requests) == ("cancelled", expected)
    assert reason in outcome.run.message and reason in outcome.notes[-1]
    rebuild_run(settings.run_dir(outcome.run.run_id), settings.database_path, 5)
    whole = add(settings, "inspect", FILES / "inspect.json").run.run_id
    for sides in ((outcome.run.run_id, whole), (whole, outcome.run.run_id)):
        with pytest.raises(ComparisonError, match=f"Run {outcome.run.run_id} is cancelled: its imported file is part"):
            DatabaseThread(settings).run(lambda connection, sides=sides: judge_run(connection, *sides))


VECTORS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


@pytest.mark.parametrize("name", REFUSED)
def test_an_impossible_file_is_one_error_that_names_it_and_stores_nothing(settings, tmp_path, name):
    kind, write, reason = REFUSED[name]
    path = write(tmp_path)
    with pytest.raises(PromptError, match=rf"{path} cannot be imported as {kind}: .*{reason}.* hint: "):
        add(settings, kind, path)
    assert not list((settings.data_dir / "runs").glob("*")) and not list(settings.data_dir.glob(".import-*"))


def test_the_damaged_file_of_a_folder_is_named_and_the_runs_before_it_are_stored(settings, tmp_path):
    write_log(tmp_path / "a.json", ["C"])
    (tmp_path / "b.json").write_text('{"half')
    with pytest.raises(PromptError, match=r"/b\.json cannot be .*Nothing of it, or of files after it, was stored"):
        list(import_files(settings, "inspect", [tmp_path]))
    assert run_kit.query(settings, "select count(*) from runs") == [(1,)]


def test_a_failure_without_a_reason_is_an_error_row_and_a_missing_time_is_null(settings, tmp_path):
    def edit(data: dict[str, Any]) -> None:
        data.update(completed=11, failed=1)
        data["ttfts"][0] = data["output_lens"][0] = 0
        data["itls"][0] = []
        data["itls"][1][3] = math.nan

    add(settings, "vllm-bench", change("vllm_bench", edit)(tmp_path))
    found = "select ok_requests, error_requests, isfinite(ttft_p50_s), isfinite(e2e_p95_s) from run"
    assert run_kit.query(settings, found) == [(11, 1, True, True)]
    stamps = "select count(*) from completions where token_at_s is null and first_token_at_s is not null"
    assert run_kit.query(settings, stamps) == [(1,)]


def test_a_sample_without_a_call_and_equal_ids_of_two_types_are_rows_of_their_own(settings, tmp_path):
    def edit(log: dict[str, Any]) -> None:
        log["samples"][0].pop("output")
        log["samples"][1]["id"], log["samples"][2]["id"] = 1, "1"

    add(settings, "inspect", write_log(tmp_path / "log.json", ["I", "C", "C"], edit))
    assert run_kit.query(
        settings, "select prompt_rows, ok_requests, error_requests from run join runs using (run_id)"
    ) == [(3, 2, 1)]


def answer(name: Any, *texts: Any, **fields: Any) -> dict[str, Any]:
    choices = [{"index": n, "message": {"content": text, **fields}, "finish_reason": "stop"} for n, text in texts]
    body = {"model": "m", "created": 1767225600, "choices": choices, "usage": {"prompt_tokens": 6}}
    return {"custom_id": name, "response": {"status_code": 200, "body": body}, "error": None}


def test_every_line_of_a_batch_counts_as_in_its_file(settings, tmp_path):
    asked = write_lines(tmp_path / "in.jsonl", *(run_kit.chat_line(f"q{n}", f"{n} + 1 =") for n in range(8)))
    output = write_lines(
        tmp_path / "out.jsonl",
        answer("q0", (1, "second"), (0, "first")),
        answer("q1", (0, [{"type": "text", "text": "2"}]), reasoning_content="one more"),
        answer("q2", (0, None), refusal="No sums."),
        answer("extra", (0, "?")),
    )
    output.write_bytes(b"\xef\xbb\xbf" + output.read_bytes())
    errors = write_lines(
        tmp_path / "errors.jsonl",
        {"custom_id": "q3", "response": {"status_code": 0, "body": {}}, "error": None},
        {"custom_id": "q4", "response": {"status_code": 500, "body": {"error": "overloaded"}}},
        {"custom_id": "q5", "response": None, "error": {"code": "batch_expired", "message": "Too late."}},
        {"custom_id": "q6", "response": None, "error": {"code": "batch_expired", "message": "Too late."}},
    )
    retry = write_lines(tmp_path / "retry.jsonl", answer("q5", (0, "6")), answer("q5", (0, "later")))
    outcome = add(settings, "openai-batch", asked, output, errors, retry)
    rows = run_kit.query(
        settings,
        "select source_id, repeat_index, status, coalesce(text, error_message), reasoning from answer order by all",
    )
    assert rows == [
        ("extra", 0, "ok", "?", None),
        ("q0", 0, "ok", "first", None),
        ("q0", 1, "ok", "second", None),
        ("q1", 0, "ok", "2", "one more"),
        ("q2", 0, "ok", "No sums.", None),
        ("q3", 0, "error", "The response has no choices; its status code is 0.", None),
        ("q4", 0, "error", "overloaded", None),
        ("q5", 0, "ok", "6", None),
        ("q6", 0, "error", "Too late.", None),
        ("q7", 0, "missing", None, None),
    ]
    assert [note.partition(" ")[0] for note in outcome.notes] == ["2", "in.jsonl"]
    output.write_text(f"{output.read_text()}{{half")
    with pytest.raises(PromptError, match=r"line 5 of out\.jsonl is not valid JSON"):
        add(settings, "openai-batch", asked, output)


def test_a_reference_that_is_text_is_the_whole_target(settings, tmp_path):
    path = repeat_eee(tmp_path)
    lines = [json.loads(line) for line in (FILES / "eee" / "choices_samples.jsonl").read_text().split("\n") if line]
    for line in lines:
        line["input"]["reference"] = "Paris"
    write_lines(tmp_path / "choices_samples.jsonl", *lines, *lines)
    add(settings, "eee", path)
    assert run_kit.query(settings, "select distinct target from prompts") == [("Paris",)]
    path.write_text(path.read_text().replace('"schema_version": "0.3.0"', '"schema_version": "0.1.0"'))
    with pytest.raises(PromptError, match=r"schema_version 0\.1\.0, expected 0\.3"):
        add(settings, "eee", path)


KILLED = """
import os, sys
from pathlib import Path
from assayline.settings import Settings
from assayline.store.thread import DatabaseThread
import assayline.run.rebuild, assayline.imports.make as make
module = sys.modules["assayline." + sys.argv[1]]
setattr(module, sys.argv[2], lambda *a, **k: os._exit(9))
list(make.import_files(Settings(data_dir=Path(sys.argv[3])), "inspect", [Path(sys.argv[4])]))
"""


@pytest.mark.parametrize("at", ["imports.make write_manifest", "run.rebuild score_run", "imports.make ensure_metrics"])
def test_the_same_import_completes_one_that_was_killed(settings, tmp_path, at):
    path = write_log(tmp_path / "log.json", ["C", "I", "C", "C"])
    command = [sys.executable, "-c", KILLED, *at.split(), str(settings.data_dir), str(path)]
    assert subprocess.run(command, check=False).returncode == 9
    assert add(settings, "inspect", path).run.state == "imported"
    assert run_kit.query(settings, "select avg(value) from scores") == [(0.75,)]
    assert run_kit.query(settings, "select value from metric_values where metric = 'accuracy'") == [(0.75,)]
    assert not list(settings.data_dir.glob(".import-*")) and len(list((settings.data_dir / "runs").iterdir())) == 1
    again = add(settings, "inspect", path, machine="h200")
    assert (again.is_new, again.notes) == (False, ["Its machine is now h200."])
    assert run_kit.query(settings, "select machine, (select count(*) from scores) from runs") == [("h200", 4)]


def test_decisions_with_any_line_break_are_read_again_and_a_torn_one_loses_no_score(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    run_id = add(settings, "inspect", write_log(tmp_path / "log.json", ["C", "I"])).run.run_id
    for note in ("one\u2028two\u2029three\x85four", "again"):
        assert run("baseline", ["pin", "stable", run_id, "--note", note]) == 0
    assert run("db rebuild", [run_id]) == 0
    (settings.run_dir(run_id) / "decisions.jsonl").write_text('{"decision": "pin", "baseline"\n')
    with pytest.raises(StoreError, match="remove the damaged line"):
        rebuild_run(settings.run_dir(run_id), settings.database_path, 5)
    assert run_kit.query(settings, "select count(*) from scores") == [(2,)]

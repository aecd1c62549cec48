"""`assayline evaluate` as a person types it: answers to good and to bad input.

A bad input is one message that says what was given, what was expected and what to do; the exit code says whose fault
it was (flows/cli/__init__.py), there is no traceback, and what was stored before is still there.
"""

import json
import re
from pathlib import Path
from typing import Any

import flow_kit
import pytest

from assayline.flows.cli import import_command
from assayline.flows.cli.words import parse_words
from assayline.spec.evaluation import EvalSpec


@pytest.fixture
def spec_file(tmp_path: Path, fake_spec: dict[str, Any]) -> Path:
    return flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)


def dry_run(spec: Path, *arguments: str | Path) -> flow_kit.Finished:
    return flow_kit.run_here("evaluate", spec, "--dry-run", *arguments)


def assert_refused(run: flow_kit.Finished, code: int, *fragments: str) -> None:
    assert run.code == code, run.err
    for fragment in fragments:
        assert fragment in run.err
    assert "Traceback" not in run.out + run.err
    assert len(re.findall(r"^error: ", run.err, re.MULTILINE)) == 1


def test_dry_run_shows_the_first_prompt_and_stores_nothing(spec_file, data_dir):
    run = flow_kit.run_here("evaluate", "--dry-run", spec_file)
    assert run.code == 0, run.err
    assert "Not checked" not in run.out, "the fake engine is not vLLM"
    assert "40 rows of sums, 0 duplicates, 40 requests (0 error rows)" in run.out
    assert "user: What is 0 + 0?" in run.out and '"max_tokens": 4' in run.out
    assert not data_dir.exists()


def test_overrides_reach_the_spec(spec_file):
    overrides = ["--prompts.limit", "3", "--prompts.template={{ question }}!", "--sampling.temperature", "0.5"]
    run = dry_run(spec_file, *overrides)
    assert run.code == 0, run.err
    for shown in ("3 rows of sums", "user: What is 0 + 0?!", '"temperature": 0.5'):
        assert shown in run.out


def test_dry_run_names_the_drop_that_the_gate_would_find(spec_file):
    run = dry_run(spec_file, "--scorers", "[exact_match]", "--gate.max_accuracy_drop", "0.05")
    assert "gate      limit 5 points. A drop of 32 points would be found with 80% power" in run.out, run.out


def test_dry_run_names_the_defaults_of_vllm(spec_file):
    unset = dry_run(spec_file, "--sampling", "{}")
    assert (
        "vLLM's defaults: temperature 1, so answers are sampled, max_tokens up to the end of the context" in unset.out
    )


def test_dry_run_finds_too_few_devices(spec_file):
    run = dry_run(spec_file, "--engine.backend", "offline", "--engine.args", "{}", "--workers", "4096")
    assert_refused(run, 5, "The spec asks for 4,096 engines with 1 core each; this machine has ", "lower `workers`")


def test_a_dry_run_shows_the_first_error_of_each_kind(tmp_path, spec_file):
    path = tmp_path / "odd.jsonl"
    rows = [json.dumps({"question": text, "answer": "x"}) for text in ("a", None, "b", None, "\ud800")]
    path.write_text("\n".join([*rows, '{"question": ']))
    odd = ["--prompts.source.path", str(path)]
    run = dry_run(spec_file, *odd)
    assert run.code == 0, run.err
    assert "6 requests (4 error rows)" in run.out
    shown = " ".join(run.out.split())
    assert "template_error 2×, first in row 1: prompts.template writes a value that is null: question." in shown
    assert "row_error 1×, first in row 4: " in shown
    assert f"unreadable_row1×,firstinrow5:{path},line6:notJSON" in shown.replace(" ", "")
    assert_refused(
        dry_run(spec_file, *odd, "--max_error_share", "0"), 3, "Row 1 cannot become", "hint: correct the row"
    )
    assert_refused(dry_run(spec_file, *odd, "--prompts.template", "{{ row.question.x }}"), 3, "x")
    path.write_text(rows[1])
    assert_refused(dry_run(spec_file, *odd), 9, "All 1 requests would be error rows")


BAD_FIELDS: dict[str, tuple[list[str], int, list[str]]] = {
    "unknown column": (["--prompts.columns.target", "anser"], 3, ["'anser'", "answer", "question"]),
    "unknown engine argument": (["--engine.args.max_num_seq", "4"], 2, ["max_num_seq", "did you mean 'max_num_seqs'"]),
    "missing model folder": (["--model", "/no/such/model"], 4, ["/no/such/model", "config.json"]),
    "override without a value": (["--prompts.limit"], 2, ["--prompts.limit has no value"]),
    "misspelt option": (["--dryrun"], 2, ["Unknown option --dryrun. hint: did you mean --dry-run?"]),
    "misspelt option with a value": (["--resum", "x"], 2, ["Unknown option --resum. hint: did you mean --resume?"]),
    "endless repeats": (["--prompts.repeats", "99999", "--sampling.n", "99999"], 2, ["prompts.repeats times"]),
    "stray word": (["examples/other.yaml"], 2, ["Unexpected argument '", "--field value"]),
}


@pytest.mark.parametrize("command", ["benchmark", "evaluate"])
def test_no_field_of_a_spec_is_taken_for_a_misspelt_option(command):
    options = vars(import_command(command).PARSER.parse_known_args([])[0])
    fields = dict.fromkeys(EvalSpec.model_fields, "1")
    assert parse_words([f"--{name}={value}" for name, value in fields.items()], options) == (None, fields)


@pytest.mark.parametrize("name", list(BAD_FIELDS))
def test_bad_field_is_one_message(spec_file, name):
    overrides, code, fragments = BAD_FIELDS[name]
    assert_refused(dry_run(spec_file, *overrides), code, *fragments)


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_a_data_folder_that_cannot_be_written_is_found_before_anything_starts(spec_file, monkeypatch, arguments):
    def begin(*_: Any) -> None:
        raise AssertionError("nothing may start")

    monkeypatch.setenv("ASSAYLINE_DATA_DIR", "/proc/data")
    monkeypatch.setattr("assayline.flows.cli.terminal.find_prefect_api", begin)
    for command in "evaluate", "benchmark":
        refused = flow_kit.run_here(command, spec_file, *arguments)
        assert_refused(refused, 6, "Cannot write to the data folder /proc/data: ", "hint: set ASSAYLINE_DATA_DIR to")


def test_an_unknown_variable_is_a_warning(spec_file, monkeypatch):
    monkeypatch.setenv("ASSAYLINE_FLUSH_ROW", "7")
    run = dry_run(spec_file)
    assert run.code == 0
    assert run.err == (
        "warning: ASSAYLINE_FLUSH_ROW is not a setting and is ignored: did you mean ASSAYLINE_FLUSH_ROWS?\n"
    )


@pytest.mark.prefect
def test_refused_runs_leave_what_was_stored(served_env, prefect_client, spec_file, data_dir, tmp_path, monkeypatch):
    """Real runs, since only they touch the database: a good one, then bad input that is found at different moments."""
    good = flow_kit.run_here("evaluate", spec_file)
    assert good.code == 0, good.err
    assert "accuracy" in good.out and "100% correct, " in good.out.splitlines()[-1]
    assert f"Database: {data_dir / 'assayline.duckdb'}" in good.out
    stored = flow_kit.query(data_dir, "select * from completions order by all")
    assert len(stored) == 40

    def fail(*_: Any) -> None:
        raise RuntimeError("Prefect fails before the run begins.")

    with monkeypatch.context() as patch:
        patch.setattr("assayline.run.driver.begin_run", fail)
        with pytest.raises(RuntimeError, match="before the run begins"):
            flow_kit.run_here("evaluate", spec_file)

    (tmp_path / "empty.jsonl").write_text("")
    empty = ["--prompts.source.path", str(tmp_path / "empty.jsonl")]
    assert_refused(flow_kit.run_here("evaluate", spec_file, *empty), 3, "has no rows", "'empty'")
    unknown = ["--engine.args.max_num_seq", "4"]
    assert_refused(flow_kit.run_here("evaluate", spec_file, *unknown), 2, "max_num_seqs")
    monkeypatch.setenv("ASSAYLINE_DATABASE_WAIT_S", "0.1")
    with flow_kit.database_held(data_dir) as (pid, _):
        locked = flow_kit.run_here("evaluate", spec_file)
    assert locked.code == 6 and f"locked by process {pid}" in locked.err and "`assayline db rebuild " in locked.err

    assert flow_kit.query(data_dir, "select state from runs") == ["completed"], "the shell's own database is as it was"
    assert flow_kit.query(data_dir, "select * from completions order by all") == stored
    flow_kit.assert_nothing_runs(data_dir)

"""Exports to lm-evaluation-harness, files that they may replace, and rows that users copy with SQL."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import run_kit

from assayline.errors import SpecError, StoreError
from assayline.export.make import FORMATS, export_run
from assayline.export.rows import new_files
from assayline.flows.cli import export as command
from assayline.settings import Settings

pytestmark = pytest.mark.slow
OF_ANY_RUN = [form for form in FORMATS if form not in ("hf", "mlflow")]


class Run:
    """A run that is there for all tests of this file."""

    def __init__(self, settings: Settings, run_id: str) -> None:
        self.settings, self.run_id = settings, run_id

    def query(self, sql: str) -> list[dict[str, Any]]:
        names_and_rows = run_kit.query(self.settings, f"select to_json(found)::varchar from ({sql}) as found")
        return [json.loads(row) for (row,) in names_and_rows]

    def export(self, form: str, output: Path, force: bool = False) -> Path:
        (path,) = export_run(self.settings, self.run_id, form, output, force).files
        return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, make_spec: Any) -> Iterator[Run]:
    settings = run_kit.settings_in(tmp_path_factory.mktemp("exports"))
    rows = [{"id": f"id-{n}", "question": f'Count, then "say"\n{n}', "answer": str(n), "kind": n % 2} for n in range(7)]
    rows.append({"id": "bad", "question": None, "answer": "x", "kind": 0})
    spec = make_spec(
        engine={"backend": "fake"},
        prompts={
            "source": {"kind": "inline", "rows": rows}, "columns": {"target": "answer", "metadata": ["kind"]},
            "repeats": 2, "name": "counting: up",
        },
        scorers=[{"kind": "contains"}, {"kind": "exact_match", "name": "same"}],
    )  # fmt: skip
    yield Run(settings, run_kit.complete(spec, settings).run_id)


def test_queries_of_the_page_copy_rows_as_csv_json_lines_and_parquet(run, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "exports.md").read_text()
    (queries,) = re.findall(r"^```sql\n(copy .*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    with duckdb.connect(run.settings.database_path, read_only=True) as connection:
        connection.execute(queries.replace("RUN_ID", run.run_id))
    expected = run.query("select request_id, status from request order by all")
    assert len(expected) == 16
    for name in ("requests.csv", "requests.parquet", "answers.jsonl"):
        found = duckdb.sql(f"select request_id from '{name}' order by all").fetchall()
        assert found == [(row["request_id"],) for row in expected]
    (asked,) = duckdb.sql(
        "select question, target, text from 'answers.jsonl' where source_id = 'id-0' limit 1"
    ).fetchall()
    assert asked[:2] == ('Count, then "say"\n0', "0") and asked[2]


def test_a_run_becomes_a_task_of_the_harness(run, tmp_path):
    folder = run.export("lm-eval", tmp_path / "lm")
    (results_file,), (samples_file,) = folder.glob("results_*.json"), folder.glob("samples_*.jsonl")
    stamp = results_file.stem.removeprefix("results_")
    assert samples_file.name == f"samples_counting__up_{stamp}.jsonl"
    results = json.loads(results_file.read_text())
    (accuracy, _) = run.query("select * from accuracy order by ordinal")
    values = results["results"]["counting__up"]
    assert values["contains,none"] == accuracy["mean"] and values["sample_len"] == 8
    assert values["contains_stderr,none"] == accuracy["standard_error"]
    samples = [json.loads(line) for line in samples_file.read_text().splitlines()]
    assert [sample["doc_id"] for sample in samples] == list(range(8))
    assert samples[7]["metrics"] == ["contains", "same"] and samples[7]["contains"] == 0, "it could not be asked"
    assert np.mean([sample["contains"] for sample in samples]) == pytest.approx(accuracy["mean"])
    made = {name: samples[0]["doc"][name] for name in ("messages", "prompt_id")}
    assert samples[0]["doc"] == {"id": "id-0", "kind": 0, **made} and len(made["prompt_id"]) == 32
    assert samples[0]["target"] == "0" and len(samples[0]["resps"][0]) == 2 and samples[7]["resps"] == [["", ""]]
    assert samples[0]["metrics"] == ["contains", "same"]


def test_export_states_utc_in_any_time_zone_and_counts_what_was_scored(settings, make_spec, tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": None}]
        prompts = {"source": {"kind": "inline", "rows": rows}, "columns": {"target": "answer"}}
        spec = make_spec(engine={"backend": "fake"}, prompts=prompts, scorers=["contains"])
        before_s, run_id = time.time(), run_kit.complete(spec, settings).run_id
        for form in OF_ANY_RUN:
            export_run(settings, run_id, form, tmp_path / form)
    finally:
        monkeypatch.undo()
        time.tzset()
    (path,) = (tmp_path / "lm-eval").glob("results_*.json")
    results = json.loads(path.read_text())
    line = json.loads((tmp_path / "openai-batch").read_text().splitlines()[0])
    assert before_s <= results["date"] <= before_s + 60 and line["response"]["body"]["created"] == int(results["date"])
    assert list(results["n-samples"].values()) == [{"original": 2, "effective": 1}]


@pytest.mark.parametrize("form", OF_ANY_RUN)
def test_tables_export_keeps_existing_files_unless_told_to_replace(run, tmp_path, form):
    place = tmp_path / "export"
    export_run(run.settings, run.run_id, form, place)
    with pytest.raises(SpecError, match=r"already exists\. hint: pass another path with --output, or replace it"):
        export_run(run.settings, run.run_id, form, place)
    export_run(run.settings, run.run_id, form, place, force=True)
    assert list(tmp_path.glob(".*")) == []


def test_tables_export_leaves_no_file_when_it_fails(tmp_path):
    (tmp_path / "old.jsonl").write_text("old")
    for error in (ValueError, KeyboardInterrupt):
        for place, force in ((tmp_path, True), (tmp_path / "new", False)):
            with pytest.raises(error), new_files(place, ["old.jsonl"], force) as folder:
                (folder / "old.jsonl").write_text("half")
                raise error
    assert list(tmp_path.iterdir()) == [tmp_path / "old.jsonl"] and (tmp_path / "old.jsonl").read_text() == "old"
    one_hint = r"cannot be written: (?!.*hint: hint).*hint: free space"
    with pytest.raises(StoreError, match=one_hint), new_files(tmp_path / "old.jsonl" / "x", [], False):
        pass


def test_tables_export_command_prints_the_path_or_the_error(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(run.settings.data_dir))
    assert tuple(FORMATS) == command.FORMATS
    assert command.run([run.run_id, "--format", "lm-eval"]) == 0
    written = capsys.readouterr()
    assert written.out == f"{run.settings.run_dir(run.run_id)}/exports/lm_eval\n"
    assert written.err == "Results and samples of counting__up.\n"
    with pytest.raises(SpecError, match="No run nobody in the database"):
        command.run(["nobody", "--format", "lm-eval", "--output", str(tmp_path / "x")])
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "nothing"))
    with pytest.raises(StoreError, match="Database not found"):
        command.run([run.run_id, "--format", "lm-eval"])


def test_batch_export_rejects_likelihoods(settings, make_spec, tmp_path):
    rows = [{"prompt": "One and one is", "choices": [" two", " three"], "target": " two"}]
    spec = make_spec(
        engine={"backend": "fake"},
        prompts={
            "source": {"kind": "inline", "rows": rows}, "columns": {"options": "choices", "target": "target"},
            "template": None,
        },
        scorers=[{"kind": "loglikelihood"}],
    )  # fmt: skip
    run = Run(settings, run_kit.complete(spec, settings).run_id)
    with pytest.raises(SpecError, match="has likelihoods of given answers"):
        run.export("openai-batch", tmp_path / "out.jsonl")
    (samples,) = run.export("lm-eval", tmp_path / "lm").glob("samples_*.jsonl")
    sample = json.loads(samples.read_text())
    assert [argument["arg_1"] for argument in sample["arguments"].values()] == [" two", " three"]
    assert sample["arguments"]["gen_args_0"]["arg_0"].endswith("One and one is<|end|><|assistant|>")
    assert [type(float(response[0][0])) for response in sample["resps"]] == [float, float]

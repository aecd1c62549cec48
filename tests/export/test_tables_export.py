"""Requests with their metrics as CSV, JSON lines and Parquet; results as vllm bench and lm-eval have them."""

import csv
import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import run_kit

from assayline.errors import SpecError, StoreError
from assayline.export import make
from assayline.export.make import FORMATS, export_run, new_file, new_folder
from assayline.export.rows import RowStream
from assayline.flows.cli import export as command
from assayline.settings import Settings

pytestmark = pytest.mark.slow
FOLDERS = {"parquet": "requests-*.parquet", "lm-eval": "results_*.json"}


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


def test_tables_have_what_stg_requests_has(run, tmp_path):
    expected = run.query("select * from stg_requests order by source_row, repeat_index")
    assert len(expected) == 16
    jsonl = [json.loads(line) for line in run.export("jsonl", tmp_path / "r.jsonl").read_text().splitlines()]
    with run.export("csv", tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    folder = run.export("parquet", tmp_path / "parquet")
    parquet = duckdb.connect().execute(
        f"select to_json(found)::varchar from read_parquet('{folder}/*.parquet') as found"
    )
    lake = [json.loads(row) for (row,) in parquet.fetchall()]
    for found in (jsonl, lake):
        assert [{name: row[name] for name in expected[0]} for row in found] == expected
    for row, want in zip(table, expected, strict=True):
        for name, value in want.items():
            text = "" if value is None else value
            assert row[name] == (str(text) if not isinstance(text, list) else json.dumps(text)), name
    first = jsonl[0]
    assert first["source_id"] == "id-0" and first["metadata"] == {"kind": 0} and first["run_id"] == run.run_id
    assert first["messages"] == [{"role": "user", "content": 'Count, then "say"\n0'}]
    assert first["scores"] == {"contains": first["scores"]["contains"], "same": first["scores"]["same"]}
    assert json.loads(lake[0]["scores_json"]) == first["scores"] and jsonl[-1]["error_kind"] == "template_error"


def test_parquet_is_files_of_bounded_size_with_one_schema(run, tmp_path, monkeypatch):
    monkeypatch.setattr(make, "FILE_ROWS", 5)
    monkeypatch.setattr(RowStream.read_pieces, "__defaults__", ("*", 2))
    folder = run.export("parquet", tmp_path / "lake")
    counts = duckdb.connect().execute(
        f"select filename, count(*) from read_parquet('{folder}/*', filename = true) group by all order by all"
    )
    assert [(Path(name).name, rows) for name, rows in counts.fetchall()] == [
        ("requests-00000.parquet", 6), ("requests-00001.parquet", 6), ("requests-00002.parquet", 4),
    ]  # fmt: skip


def test_the_result_of_vllm_bench_is_that_of_its_own_formulas(run, tmp_path):
    found = json.loads(run.export("vllm-bench", tmp_path / "bench.json").read_text())
    rows = run.query("select * from stg_requests where status = 'ok' order by source_row, repeat_index")
    ttfts = [row["ttft_s"] for row in rows]
    tpots = [(row["last_token_at_s"] - row["first_token_at_s"]) / (row["output_tokens"] - 1) for row in rows]
    latencies = [row["finished_at_s"] - row["arrived_at_s"] for row in rows]
    for name, values in {"ttft": ttfts, "tpot": tpots, "e2el": latencies}.items():
        assert found[f"median_{name}_ms"] == pytest.approx(np.median(values) * 1000)
        assert found[f"p99_{name}_ms"] == pytest.approx(np.percentile(values, 99) * 1000)
    assert (found["completed"], found["failed"], found["num_prompts"]) == (14, 2, 16)
    assert found["total_output_tokens"] == sum(row["output_tokens"] for row in rows)
    assert found["output_throughput"] == pytest.approx(found["total_output_tokens"] / found["duration"])
    assert found["request_throughput"] == pytest.approx(14 / found["duration"])
    assert [value for value in found["ttfts"] if value is not None] == pytest.approx(ttfts)
    assert found["itls"] == [None] * 16, "no engine recorded them: null, and not 0"
    assert found["request_rate"] == "inf" and "median_itl_ms" not in found and "mean_ttft_ms" not in found
    assert found["errors"][:14] == [""] * 14 and "null" in found["errors"][14] and found["ttfts"][14] is None


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
    assert samples[0]["doc"] == {"id": "id-0", "kind": 0, "messages": samples[0]["doc"]["messages"]}
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
        for form in ("lm-eval", "openai-batch", "jsonl", "vllm-bench"):
            export_run(settings, run_id, form, tmp_path / form)
    finally:
        monkeypatch.undo()
        time.tzset()
    (path,) = (tmp_path / "lm-eval").glob("results_*.json")
    results, bench = json.loads(path.read_text()), json.loads((tmp_path / "vllm-bench").read_text())
    lines = [json.loads((tmp_path / form).read_text().splitlines()[0]) for form in ("openai-batch", "jsonl")]
    started_s = datetime.fromisoformat(lines[1]["started_at"]).timestamp()
    assert before_s <= started_s <= before_s + 60 and bench["date"] == f"{run_id[:15]}"
    assert (results["date"], lines[0]["response"]["body"]["created"]) == (started_s, int(started_s))
    assert list(results["n-samples"].values()) == [{"original": 2, "effective": 1}]


@pytest.mark.parametrize("form", FORMATS)
def test_tables_export_keeps_existing_files_unless_told_to_replace(run, tmp_path, form):
    place = tmp_path / "export"
    run.export(form, place) if form != "openai-batch" else export_run(run.settings, run.run_id, form, place)
    with pytest.raises(SpecError, match=r"already exists\. hint: pass another path with --output, or replace it"):
        export_run(run.settings, run.run_id, form, place)
    export_run(run.settings, run.run_id, form, place, force=True)
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("form", FOLDERS)
def test_a_folder_with_anything_else_is_never_replaced(run, tmp_path, form):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    with pytest.raises(SpecError, match=r"contains thesis.tex, which is not part of such an export"):
        export_run(run.settings, run.run_id, form, tmp_path / "precious", force=True)
    with pytest.raises(SpecError, match="is a folder, but this format is one file"):
        export_run(run.settings, run.run_id, "csv", tmp_path / "precious", force=True)
    assert (tmp_path / "precious" / "thesis.tex").exists()


def test_tables_export_leaves_no_file_when_it_fails(tmp_path):
    (tmp_path / "old.csv").write_text("old")
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), new_file(tmp_path / "new.csv", False) as file:
            file.write("half")
            raise error
        with pytest.raises(error), new_file(tmp_path / "old.csv", True) as file:
            file.write("half")
            raise error
        with pytest.raises(error), new_folder(tmp_path / "lake", ("*.parquet",), False) as folder:
            (folder / "a.parquet").write_text("half")
            raise error
    assert list(tmp_path.iterdir()) == [tmp_path / "old.csv"] and (tmp_path / "old.csv").read_text() == "old"
    one_hint = r"cannot be written: (?!.*hint: hint).*hint: free space"
    with pytest.raises(StoreError, match=one_hint), new_file(tmp_path / "old.csv" / "x", False):
        pass


def test_tables_export_command_prints_the_path_or_the_error(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(run.settings.data_dir))
    assert tuple(make.FORMATS) == command.FORMATS
    assert command.run([run.run_id, "--format", "csv"]) == 0
    written = capsys.readouterr()
    assert written.out == f"{run.settings.run_dir(run.run_id)}/exports/requests.csv\n"
    assert written.err == "16 requests.\n"
    with pytest.raises(SpecError, match="No run nobody in the database"):
        command.run(["nobody", "--format", "csv", "--output", str(tmp_path / "x")])
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "nothing"))
    with pytest.raises(StoreError, match="Database not found"):
        command.run([run.run_id, "--format", "csv"])


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

"""Result files of other tools become runs: equal to the tools' own numbers, completely or not at all, and once.

The files in tests/fixtures/imports are short extracts of results of lm_eval 0.4.13, vLLM 0.32, GuideLLM 0.8.1 and
Inspect for SmolLM2-135M-Instruct and the tiny model, and of a conversion by every_eval_ever 0.3.
"""

import hashlib
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import run_kit
import yaml
from huggingface_hub import parse_eval_result_entries

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import export_docs

from assayline.comparison.gate import judge_run
from assayline.errors import PromptError, SpecError
from assayline.export.hub import export_hub
from assayline.export.make import FORMATS, export_run, export_tables
from assayline.export.rows import find_exported
from assayline.flows.cli import run
from assayline.imports import KINDS
from assayline.imports.make import import_files
from assayline.imports.verify import verify_files
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.spec.named import find_benchmark
from assayline.store.thread import DatabaseThread

ENGINE_METRICS = {
    "concurrency_used_share", "downtime_s", "engine_failures", "engine_steps", "isolated_requests", "load_s",
    "output_tokens_per_step",
    "preemptions", "rebuilds", "reductions", "retried_requests", "vanished_engines", "warmup_s", "workers",
}  # fmt: skip
FILES = Path(__file__).resolve().parents[1] / "fixtures" / "imports"
EXAMPLES = {
    "lm-eval": FILES / "lm_eval",
    "vllm-bench": FILES / "vllm_bench.json",
    "guidellm": FILES / "guidellm.json",
    "inspect": FILES / "inspect.eval",
    "eee": FILES / "eee",
}


def add(settings: Settings, kind: str, *paths: Path) -> list[str]:
    """Import files and return the ids of the runs that are new."""
    found = import_files(settings, kind, list(paths or [EXAMPLES[kind]]))
    return [outcome.run.run_id for outcome in found if outcome.is_new]


def read_values(settings: Settings, run_id: str) -> dict[tuple[str, str, str | None], float]:
    rows = run_kit.query(
        settings,
        f"select metric, statistic, detail, value from metric_value where run_id = '{run_id}' and value is not null",
    )
    return {(metric, statistic, detail): value for metric, statistic, detail, value in rows}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_lm_eval_scores_equal_those_of_the_file(settings):
    run_ids = add(settings, "lm-eval")
    assert len(run_ids) == 2
    for run_id, results in zip(run_ids, sorted(EXAMPLES["lm-eval"].glob("results_*")), strict=True):
        tables = json.loads(results.read_text())["results"]
        named = {f"{task}: {name}": value for task in tables for name, value in tables[task].items() if name != "alias"}
        assert len(named) == 5
        values = read_values(settings, run_id)
        assert {name: values["accuracy", "mean", name] for name in named} == pytest.approx(named)
        assert values["expected_requests", "total", None] == 24 * 4 + 24, "options, and generated answers"
        assert ("duration_s", "total", None) not in values and ("engine_failures", "total", None) not in values
    ((first, option, logprob),) = run_kit.query(
        settings,
        "select target, option, option_logprob from stg_requests "
        f"where run_id = '{run_ids[0]}' and source_row = 0 and option_index = 1",
    )
    sample = read_lines(next(EXAMPLES["lm-eval"].glob("samples_choices_*27-22*")))[0]
    assert (first, option) == (sample["target"], sample["arguments"]["gen_args_1"]["arg_1"])
    assert logprob == float(sample["resps"][1][0][0])


def test_vllm_bench_latencies_equal_those_of_the_arrays(settings):
    (run_id,) = add(settings, "vllm-bench")
    data, values = json.loads(EXAMPLES["vllm-bench"].read_text()), read_values(settings, run_id)
    starts, ttfts = np.array(data["start_times"]), np.array(data["ttfts"])
    ends = starts + ttfts + np.array([sum(gaps) for gaps in data["itls"]])
    tokens = np.array(data["output_lens"])
    assert values["ttft_s", "p50", None] == pytest.approx(np.percentile(ttfts, 50), abs=2e-6)
    tpot = (ends - starts - ttfts) / (tokens - 1)
    assert values["tpot_s", "p95", None] == pytest.approx(np.percentile(tpot, 95), abs=2e-6)
    seconds = ends.max() - starts.min()
    assert values["output_tokens_per_s", "mean", None] == pytest.approx(tokens.sum() / seconds, rel=1e-3)
    assert run_kit.query(settings, "select arrival, requests_per_s from loads") == [("poisson", 4.0)]


def test_vllm_bench_chats_open_with_an_event_without_a_token(settings):
    path = run_kit.ROOT / "flows" / "cli" / "demo" / "results" / "load" / "vllm-bench.json"
    (run_id,) = add(settings, "vllm-bench", path)
    gaps = [row[-31:] for row in json.loads(path.read_text())["itls"]]
    query = f"select value, n from metric_value where (metric, statistic, run_id) = ('itl_s', 'p50', '{run_id}')"
    ((value, n),) = run_kit.query(settings, query)
    assert n == len(gaps) * 31
    assert value == pytest.approx(np.percentile(gaps, 50), abs=2e-6)
    assert [one.different for one in verify_files([path])] == [[]]


def test_guidellm_benchmarks_become_runs_with_their_latencies(settings):
    run_ids = add(settings, "guidellm")
    report = json.loads(EXAMPLES["guidellm"].read_text())
    for run_id, benchmark in zip(run_ids, report["benchmarks"], strict=True):
        requests, values = benchmark["requests"]["successful"], read_values(settings, run_id)
        ttfts = [request["time_to_first_token_ms"] / 1e3 for request in requests]
        latencies = [request["request_latency"] for request in requests]
        assert values["ttft_s", "p50", None] == pytest.approx(np.percentile(ttfts, 50), abs=1e-3)
        assert values["e2e_s", "p50", None] == pytest.approx(np.percentile(latencies, 50), abs=1e-5)
        streams = benchmark["config"]["strategy"]["streams"]
        assert run_kit.query(settings, f"select concurrency from loads where run_id = '{run_id}'") == [(streams,)]


@pytest.mark.parametrize("name", ["inspect.eval", "inspect.json"])
def test_inspect_epochs_are_repeats_with_their_verdicts(settings, name):
    (run_id,) = add(settings, "inspect", FILES / name)
    read = run_kit.query(
        settings,
        "select source_id, count(distinct repeat_index), any_value(target) "
        "from requests join prompts using (run_id, prompt_id, occurrence) "
        f"where run_id = '{run_id}' group by source_id order by source_id",
    )
    assert all(repeats == (2 if name == "inspect.eval" else 1) for _, repeats, _ in read)
    assert [(source_id, target) for source_id, _, target in read[:2]] == [("s0", "3"), ("s1", "5")]
    verdicts = run_kit.query(settings, f"select scorer, value, explanation from scores where run_id = '{run_id}'")
    assert {scorer for scorer, *_ in verdicts} == {"includes", "match"}
    assert all(value in (0, 1) for _, value, _ in verdicts)


def test_eee_scores_equal_those_of_the_log(settings):
    (run_id,) = add(settings, "eee")
    log, values = json.loads((EXAMPLES["eee"] / "choices.json").read_text()), read_values(settings, run_id)
    for result in log["evaluation_results"]:
        mean = values["accuracy", "mean", result["evaluation_result_id"]]
        assert mean == pytest.approx(result["score_details"]["score"])
    assert values["expected_requests", "total", None] == 8, "a sample has a line per metric"


def test_imported_runs_are_judged_ranked_reported_and_rebuilt(settings, tmp_path, monkeypatch, capsys):
    baseline, candidate = add(settings, "lm-eval")
    database = DatabaseThread(settings)
    gate = database.run(lambda connection: judge_run(connection, candidate, baseline))
    tasks = ["choices: acc,none", "regex: exact_match,strict"]
    named = ["errors", *(f"accuracy, {name}" for name in ("all tasks", *tasks))]
    assert [check.check for check in gate.checks] == named, "each task, and nothing on speed"
    for check, prompts in zip(gate.checks[1:], (48, 24, 24), strict=True):
        assert f"over {prompts} prompts" in check.words, "paired by content"
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    for words in ([candidate, "--baseline", baseline], ["--leaderboard"], ["--history", candidate]):
        assert run("report", [*words, "--out", str(tmp_path / "page")]) == 0
    capsys.readouterr()
    assert run("compare", [candidate, baseline]) == 0
    compared = capsys.readouterr().out
    assert "acc,none" in compared and "All changed answers" in compared and "tokens_per_s" not in compared
    before = read_values(settings, candidate)
    assert run("db rebuild", [candidate]) == 0
    assert read_values(settings, candidate) == before
    assert run_kit.query(settings, "select distinct state, purpose from run") == [("imported", "import")]
    assert run("evaluate", ["--resume", candidate]) == 2, "its requests cannot be sent again"


FIRST = {"a": "acc", "b": "exact_match", "c": "acc"}
"""First metrics of tasks."""


def write_lm_eval(folder: Path, **right: int) -> Path:
    """Write results with 100 documents per task, of which the first ones are right, and a second metric."""
    folder.mkdir()
    results = {task: {f"{FIRST[task]},none": number / 100, "other,none": 0.5} for task, number in right.items()}
    data = {"results": results, "configs": results, "date": float(sum(right.values())), "model_name": "m"}
    (folder / "results_1.json").write_text(json.dumps(data))
    for task, number in right.items():
        rows = [
            {"doc_id": at, "doc": {"at": at}, "target": "", "arguments": {"0": {"0": f"{task} {at}", "1": {}}},
             "resps": [["x"]], "filtered_resps": ["x"], "filter": "none",
             "metrics": [FIRST[task], "other"], FIRST[task]: float(at < number), "other": at % 2}
            for at in range(100)
        ]  # fmt: skip
        (folder / f"samples_{task}_1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_eee(folder: Path, **right: int) -> Path:
    """Write the same results, whose samples have the same ids in each data set."""
    folder.mkdir()
    metrics = {task: (f"{FIRST[task]},none", "other,none") for task in right}
    results = [
        {"evaluation_name": f"{task} {name}", "evaluation_result_id": name, "metric_config": {},
         "source_data": {"dataset_name": task}}
        for task, names in metrics.items() for name in names
    ]  # fmt: skip
    lines = [
        {"evaluation_name": f"{task} {name}", "evaluation_result_id": name, "sample_id": str(at),
         "input": {"raw": f"{task} {at}", "reference": ["x"]}, "output": {"raw": ["x"]}, "answer_attribution": [],
         "evaluation": {"score": at % 2 if name == "other,none" else float(at < right[task])}}
        for task, names in metrics.items() for at in range(100) for name in names
    ]  # fmt: skip
    (folder / "log_samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = {
        "schema_version": "0.3.0", "model_info": {"id": "m"}, "eval_library": {"name": "x"},
        "evaluation_timestamp": sum(right.values()), "evaluation_results": results,
        "detailed_evaluation_results": {"file_path": "log_samples.jsonl", "total_rows": len(lines)},
    }  # fmt: skip
    (folder / "log.json").write_text(json.dumps(log))
    return folder


@pytest.mark.parametrize(("kind", "write"), [("lm-eval", write_lm_eval), ("eee", write_eee)])
@pytest.mark.parametrize(
    ("before", "after", "failed"),
    [
        ({"a": 90, "b": 85}, {"a": 90, "b": 0}, ["all tasks", "b: exact_match,none"]),
        ({"a": 50, "b": 50, "c": 50}, {"a": 20, "b": 80, "c": 50}, ["a: acc,none"]),
    ],
    ids=["the second of two", "one that another makes up for"],
)
def test_gate_judges_every_task_of_a_file_and_all_together(settings, tmp_path, kind, write, before, after, failed):
    (old,), (new,) = (add(settings, kind, write(tmp_path / str(at), **right))
                      for at, right in enumerate((before, after)))  # fmt: skip
    report = DatabaseThread(settings).run(lambda connection: judge_run(connection, new, old))
    assert [check.check for check in report.failed] == [f"accuracy, {name}" for name in failed]
    checked = {check.check for check in report.checks}
    assert checked >= {f"accuracy, {task}: {FIRST[task]},none" for task in before}
    assert not any("other" in one for one in checked)
    mean = sum(after.values()) / (100 * len(after))
    for read in ("main.run", "run_metric where metric = 'accuracy' and run_id"):
        column, where = ("accuracy", "where run_id") if read == "main.run" else ("value", "")
        ((value,),) = run_kit.query(settings, f"select {column} from {read} {where} = '{new}'")
        assert value == pytest.approx(mean), f"{read} is of all tasks"


def test_gate_names_the_scorers_of_a_run_that_it_does_not_judge(settings, tmp_path):
    old, new = (add(settings, "lm-eval", write_lm_eval(tmp_path / str(right), a=right))[0] for right in (90, 91))
    report = DatabaseThread(settings).run(lambda connection: judge_run(connection, new, old))
    assert "Not judged: other,none." in report.checks[1].words


def test_a_second_import_adds_nothing_even_from_another_place(settings, tmp_path):
    for kind in EXAMPLES:
        assert add(settings, kind)
        copy = tmp_path / EXAMPLES[kind].name
        (shutil.copytree if EXAMPLES[kind].is_dir() else shutil.copy)(EXAMPLES[kind], copy)
        counted = run_kit.query(settings, "select count(*), (select count(*) from scores) from requests")
        assert add(settings, kind, copy) == []
        assert run_kit.query(settings, "select count(*), (select count(*) from scores) from requests") == counted


def test_a_run_whose_import_was_killed_before_it_was_loaded_is_loaded_by_the_next(settings):
    first = add(settings, "guidellm")
    settings.database_path.unlink()  # the folder of a run is complete before the database has it
    assert add(settings, "guidellm") == first and add(settings, "guidellm") == []
    assert run_kit.query(settings, "select run_id from runs order by all") == [(run_id,) for run_id in sorted(first)]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_damaged_file_is_one_error_and_stores_nothing(settings, tmp_path, kind):
    source = EXAMPLES[kind]
    target = tmp_path / source.name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    torn = sorted(target.glob("*samples*"))[-1] if target.is_dir() else target
    torn.write_bytes(torn.read_bytes()[: math.floor(torn.stat().st_size * 0.7)])
    before = [] if kind != "lm-eval" else [1]  # the first of its two runs is complete
    with pytest.raises(PromptError, match=r"cannot be imported as .* hint: "):
        add(settings, kind, target)
    assert len(list((settings.data_dir / "runs").glob("*"))) == len(before)
    assert not list(settings.data_dir.glob(".import-*")), "nothing is left aside"


def test_every_kind_has_an_example_or_a_round_trip():
    assert set(KINDS) - set(EXAMPLES) == {"openai-batch", "inference-perf", "values"}, "see test_totals.py"


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Settings, str, Path]:
    """A run over a batch file on the fake engine, with a line that cannot be sent, and its export."""
    folder = tmp_path_factory.mktemp("own")
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    lines = [run_kit.chat_line(f"q{number}", f"What is {number} + 1?", max_tokens=3) for number in range(6)]
    several = run_kit.chat_line("several", "What is 7 + 1?", n=3, max_tokens=2, seed=1)
    path = run_kit.write_batch(folder / "in.jsonl", *lines, run_kit.chat_line("bad", stream=True), several)
    source = {"kind": "openai_batch", "path": str(path)}
    spec = parse_spec({
        "name": "batch", "model": str(tiny_model), "prompts": {"source": source}, "engine": {"backend": "fake"},
    })  # fmt: skip
    return settings, run_kit.complete(spec, settings).run_id, path


@pytest.mark.slow
def test_openai_batch_export_and_import_carry_the_same_requests(own_run, tmp_path):
    settings, run_id, path = own_run
    files = export_run(settings, run_id, "openai-batch", tmp_path / "out.jsonl").files
    (copy,) = add(settings, "openai-batch", path, *files)
    columns = "request_id, prompt_id, prompt_tokens, finish_reason, text, error_kind"
    read = f"select {columns} from stg_requests where run_id = '{{}}' order by request_id"
    assert run_kit.query(settings, read.format(copy)) == run_kit.query(settings, read.format(run_id))
    names = ("ok_requests", "error_requests", "missing_requests", "prompt_tokens", "truncated_requests")
    before, after = read_values(settings, run_id), read_values(settings, copy)
    assert [after[name, "total", None] for name in names] == [before[name, "total", None] for name in names]


@pytest.mark.slow
def test_export_docs_have_the_metrics_that_exports_keep(settings, tiny_model):
    run_id = run_kit.complete(parse_spec({**export_docs.SPEC, "model": str(tiny_model)}), settings).run_id
    assert export_docs.render(settings, run_id) == export_docs.PAGE.read_text(), "run python -m scripts.export_docs"
    read = "select prompt_id, target, source_id from prompts where run_id = '{}' order by all"
    copies = [
        copy for (copy,) in run_kit.query(settings, "select run_id from runs where spec_json ->> '$.imported' <> ''")
    ]
    wanted = run_kit.query(settings, read.format(run_id))
    assert [run_kit.query(settings, read.format(copy)) == wanted for copy in copies].count(True) == 2, "pairs"


@pytest.fixture(scope="module")
def secret_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Settings, str]:
    """A run with two answers per prompt, a row that cannot be asked, and texts that are easy to find."""
    settings = run_kit.settings_in(tmp_path_factory.mktemp("secret"))
    rows = [{"id": f"r{n}", "question": f"secret bako {n}", "answer": f"secret {n}", "of": "secret"} for n in range(6)]
    columns = {"prompt": "question", "target": "answer", "metadata": ["of"]}
    spec = parse_spec({
        "name": "own", "model": str(tiny_model), "engine": {"backend": "fake"}, "chat": {"system": "secret system"},
        "prompts": {
            "source": {"kind": "inline", "rows": [*rows, {"id": "bad", "question": None, "answer": "secret"}]},
            "columns": columns, "repeats": 2,
        },
        "sampling": {"max_tokens": 6, "logprobs": 1}, "max_error_share": 1.0,
        "scorers": [{"kind": "token_f1"}, {"kind": "regex", "pattern": "([a-z])"}],
    })  # fmt: skip
    return settings, run_kit.complete(spec, settings).run_id


@pytest.fixture(scope="module")
def eee_log(secret_run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("log")
    return folder, export_run(*secret_run, "eee", folder).files


@pytest.mark.slow
def test_eee_export_and_import_carry_repeats_errors_and_times(secret_run, eee_log):
    settings, run_id = secret_run
    (copy,) = add(settings, "eee", eee_log[1][0])
    before, after = read_values(settings, run_id), read_values(settings, copy)
    assert after.items() <= before.items(), "no value differs, and none is invented"
    assert {metric for metric, *_ in before} - {metric for metric, *_ in after} <= ENGINE_METRICS
    lines = read_lines(eee_log[1][1])
    assert len(lines) == 2 * 7 * 2 and {line["metadata"]["repeat_index"] for line in lines} == {"0", "1"}
    first = lines[0]
    assert first["token_usage"]["total_tokens"] > 6 and first["performance"]["time_to_first_token_ms"] > 0


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("every_eval_ever") is None, reason="every_eval_ever is not installed; Python 3.12 has it"
)
def test_eee_export_passes_its_validator_without_warnings(eee_log):
    folder, files = eee_log
    command = ["every_eval_ever", "validate", *(str(file.relative_to(folder)) for file in files)]
    validated = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert validated.returncode == 0, validated.stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", [*(form for form in FORMATS if form not in ("hf", "mlflow")), "tables"])
def test_exports_without_texts_have_digests_of_prompts_and_answers(secret_run, tmp_path, form):
    settings, run_id = secret_run
    answers = {
        text for (text,) in run_kit.query(settings, f"select text from answer where run_id = '{run_id}'") if text
    }
    assert all(len(text) >= 6 for text in answers)

    def export(without_texts: bool) -> str:
        output = tmp_path / str(without_texts)
        if form == "tables":
            export_tables(settings, [run_id], output, without_texts=without_texts)
        else:
            export_run(settings, run_id, form, output, without_texts=without_texts)
        files = [output] if output.is_file() else [path for path in output.rglob("*") if path.is_file()]
        return "".join(read_text(path) for path in files)

    full = export(False)
    assert ("secret" in full or form == "openai-batch") and any(json.dumps(text)[1:-1] in full for text in answers)
    hidden = export(True)
    assert "secret" not in hidden and not any(json.dumps(text)[1:-1] in hidden for text in answers)
    assert hashlib.sha256(min(answers).encode()).hexdigest() in hidden


def read_text(path: Path) -> str:
    if path.suffix != ".parquet":
        return path.read_text(encoding="utf-8")
    return "\n".join(row for (row,) in duckdb.sql(f"select to_json(found)::varchar from '{path}' as found").fetchall())


@pytest.mark.slow
def test_mlflow_export_has_every_metric_and_the_report_and_a_second_one_updates(secret_run, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'assayline[mlflow]'")
    from mlflow.tracking import MlflowClient

    settings, run_id = secret_run
    (settings.run_dir(run_id) / "report.html").write_text("report")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for word in ("Created", "Updated"):
        assert export_run(settings, run_id, "mlflow").sentences[0].startswith(word)
    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("own").experiment_id])
    columns = "value, low, high from metric_value where statistic = 'mean' and detail = 'regex' and metric = 'accuracy'"
    ((value, low, high),) = run_kit.query(settings, f"select {columns} and run_id = '{run_id}'")
    name = "accuracy_mean/regex"
    assert [found.data.metrics[name + end] for end in ("", "_low", "_high")] == [value, low, high]
    assert found.data.metrics.keys() >= {"ok_requests", "ttft_s_p50"} and found.info.status == "FINISHED"
    assert len(client.get_metric_history(found.info.run_id, name)) == 1, "an equal value is not logged again"
    assert found.data.params["sampling.max_tokens"] == "6"
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["report.html"]
    counting = "select count(value) + count(low) + count(high) from metric_value where run_id = "
    counted = run_kit.query(settings, f"{counting}'{run_id}' and value is not null")
    assert [(len(found.data.metrics),)] == counted


@pytest.mark.slow
def test_hf_export_names_the_pinned_dataset_or_the_reason_why_not(secret_run, tmp_path, monkeypatch):
    settings, run_id = secret_run
    revision = "0123456789" * 4
    hub = {"kind": "hub", "dataset": "openai/gsm8k", "subset": "main", "split": "test"}

    def export(source: dict[str, Any], model: str) -> Path:
        def work(connection: Any) -> Path:
            run = find_exported(connection, run_id, settings.run_dir(run_id), without_texts=False)
            spec, row = {"prompts": {"source": source}}, {**run.row, "model": model}
            return export_hub(connection, replace(run, spec=spec, row=row), tmp_path, force=False).files[0]

        return DatabaseThread(settings).run(work)

    pinned = {**hub, "revision": revision}
    refused = {
        "not a benchmark of the hub": ({"kind": "inline"}, "org/model"),
        "its dataset has no revision": ({**hub, "revision": "main"}, "org/model"),
        "7 rows, and it has 1,319": (pinned, "org/model"),
    }
    for reason, (source, model) in refused.items():
        with pytest.raises(SpecError, match=rf"{reason}.* hint: "):
            export(source, model)
    small = replace(find_benchmark("gsm8k"), prompts=7, digest=None)
    monkeypatch.setattr("assayline.export.hub.find_by_source", lambda source: small)
    with pytest.raises(SpecError, match="is not a model of the hub"):
        export(pinned, "/models/own")
    path = export(pinned, "org/model")
    assert path == tmp_path / ".eval_results" / "gsm8k.yaml"
    (entry,) = parse_eval_result_entries(yaml.safe_load(path.read_text()))
    assert (entry.dataset_id, entry.task_id, entry.dataset_revision) == ("openai/gsm8k", "gsm8k", revision)
    ((mean,),) = run_kit.query(settings, f"select mean from accuracy where run_id = '{run_id}' and ordinal = 0")
    assert entry.value == round(100 * mean, 2) and "95% interval" in str(entry.notes)

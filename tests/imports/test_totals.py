"""Files without requests and samples become runs of the numbers that they state, and of no other number.

`totals/` has results of vLLM 0.32 and GuideLLM 0.8.1 for the tiny model on a CPU, and the forms of `vllm bench latency`
and of a stage of inference-perf.
"""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import run_kit

from assayline.comparison.gate import judge_run
from assayline.comparison.totals import compare_stated
from assayline.errors import PromptError
from assayline.export.make import export_tables
from assayline.flows.cli import run
from assayline.imports.make import Names, import_files
from assayline.report.make import make_report
from assayline.settings import Settings
from assayline.store.thread import DatabaseThread

FILES = Path(__file__).resolve().parents[1] / "fixtures" / "imports"
TOTALS = FILES / "totals"
Values = dict[tuple[str, str, str | None], tuple[float, int | None]]


def add(settings: Settings, *paths: Path, kind: str | None = None, **names: str) -> list[Any]:
    return list(import_files(settings, kind, list(paths), Names(**names)))


def read_values(settings: Settings, run_id: str) -> Values:
    rows = run_kit.query(
        settings, f"select metric, statistic, detail, value, n, low, high from metric_value where run_id = '{run_id}'"
    )
    assert all((low, high) == (None, None) for *_, low, high in rows), "no interval that the file does not state"
    return {(metric, statistic, detail): (value, n) for metric, statistic, detail, value, n, *_ in rows}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def drop_samples(folder: Path) -> Path:
    results = min((FILES / "lm_eval").glob("results_*"))
    data = json.loads(results.read_text())
    data["results"]["choices"] |= {"acc_stderr,none": 0.0847, "word_perplexity,none": 12.5}
    return write(folder / results.name, data)


def drop_log(folder: Path) -> Path:
    log = json.loads((FILES / "inspect.json").read_text())
    del log["samples"]
    return write(folder / "log.json", log)


def drop_eee(folder: Path) -> Path:
    log = json.loads((FILES / "eee" / "choices.json").read_text())
    del log["detailed_evaluation_results"]
    return write(folder / "choices.json", log)


SERVE = json.loads((TOTALS / "serve.json").read_text())
STATED: dict[str, tuple[Any, Values]] = {
    "vllm bench serve": (TOTALS / "serve.json", {
        ("ttft_s", "p50", None): (SERVE["median_ttft_ms"] / 1e3, 12),
        ("ttft_s", "p99", None): (SERVE["p99_ttft_ms"] / 1e3, 12),
        ("e2e_s", "mean", None): (SERVE["mean_e2el_ms"] / 1e3, 12),
        ("itl_s", "sd", None): (SERVE["std_itl_ms"] / 1e3, 12),
        ("output_tokens_per_s", "mean", None): (SERVE["output_throughput"], 12),
        ("output_tokens_per_s", "max", None): (SERVE["max_output_tokens_per_s"], 12),
        ("ok_requests", "total", None): (12, None),
    }),
    "its client in Rust": (
        lambda folder: write(folder / "rust.json", {
            **SERVE, "max_model_len": None, "input_throughput": 12.25, "steady_state": {"mean_ttft_ms": 2.5},
        }),
        {
            ("prompt_tokens_per_s", "mean", None): (12.25, 12),
            ("steady_state_mean_ttft_ms", "value", None): (2.5, None),
        },
    ),
    "vllm bench throughput": (TOTALS / "throughput.json", {
        ("total_tokens_per_s", "mean", None): (
            json.loads((TOTALS / "throughput.json").read_text())["tokens_per_second"], None,
        ),
    }),
    "vllm bench latency": (TOTALS / "latency.json", {
        ("batch_latency_s", "p90", None): (
            json.loads((TOTALS / "latency.json").read_text())["percentiles"]["90"], 5,
        ),
    }),
    "guidellm": (TOTALS / "guidellm.json", {
        ("ttft_s", "p99.9", None): (
            json.loads((TOTALS / "guidellm.json").read_text())["benchmarks"][0]["metrics"]["time_to_first_token_ms"][
                "successful"
            ]["percentiles"]["p999"] / 1e3, 10,
        ),
        ("ok_requests", "total", None): (10, None),
    }),
    "inference-perf": (TOTALS / "stage_0_lifecycle_metrics.json", {
        ("tpot_s", "p90", None): (0.0125, 40), ("requests_per_s", "mean", None): (3.75, 40),
        ("error_requests", "total", None): (2, None), ("send_lag_s", "mean", None): (0.0005, 40),
    }),
    "lm-eval": (drop_samples, {
        ("accuracy", "mean", "choices: acc,none"): (0.7916666666666666, 24),
        ("standard_error", "accuracy", "choices: acc,none"): (0.0847, 24),
        ("word_perplexity", "mean", "choices: word_perplexity,none"): (12.5, 24),
    }),
    "inspect": (drop_log, {
        ("accuracy", "mean", "match"): (0.35, 20),
        ("standard_error", "accuracy", "match"): (0.10942433098048308, 20),
    }),
    "eee": (drop_eee, {}),
    "values": (
        lambda folder: write(folder / "ci.csv", "date,name,value,unit,n\n2026-09-01,gsm8k,0.85,share,200\n"
                             "2026-09-01,ttft_s,0.25,,\n"),
        {("accuracy", "mean", "gsm8k"): (0.85, 200), ("ttft_s", "mean", None): (0.25, None)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", STATED)
def test_every_number_of_a_file_without_rows_is_stored_as_it_is_stated(settings, tmp_path, form):
    given, stated = STATED[form]
    path = given if isinstance(given, Path) else given(tmp_path)
    names = {"model": "m"} if form in ("inference-perf", "values") else {}
    (outcome,) = add(settings, path, **names)
    notes = [f"{task}: 24 of 60 documents were asked, by --limit." for task in ("choices", "regex")] * (
        form == "lm-eval"
    )
    assert (outcome.run.purpose, outcome.run.state, outcome.notes) == ("totals", "imported", notes)
    values = read_values(settings, outcome.run.run_id)
    assert {key: values[key] for key in stated} == {
        key: (pytest.approx(value), n) for key, (value, n) in stated.items()
    }
    assert values["missing_requests", "total", None] == (None, None), "no number of assayline's"
    (again,) = add(settings, path, **names)
    assert not again.is_new and again.run.run_id == outcome.run.run_id


def make_night(night: int, better: float = 1.0) -> dict[str, Any]:
    """Return a result whose speeds vary by some percent."""
    factor = better * (1 + 0.01 * (night * 7 % 5 - 2))
    speeds = {name: SERVE[name] * factor for name in ("output_throughput", "request_throughput")}
    return {**SERVE, **speeds, "date": f"202609{night + 1:02}-020000"}


def test_a_folder_mixes_kinds_and_a_sweep_counts_once(settings, tmp_path):
    nights = [make_night(night) for night in range(3)]
    shutil.copytree(FILES / "lm_eval", tmp_path / "lm_eval")
    (tmp_path / "sweep").mkdir()
    for number, night in enumerate(nights[:2]):
        write(tmp_path / "sweep" / f"run={number}.json", night)
    write(tmp_path / "sweep" / "summary.json", nights[:2])
    write(tmp_path / "notes.json", {"anything": 1})
    packed = tmp_path / "older.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(nights[2]).encode()))
    with pytest.raises(PromptError, match=r"older.json.gz .* it is compressed.* hint: decompress it"):
        add(settings, packed)
    said: list[str] = []
    outcomes = list(import_files(settings, None, [tmp_path], say=said.append))
    assert [outcome.run.purpose for outcome in outcomes] == ["import", "import", "totals", "totals"]
    assert said == ["Left out, as of no known kind: notes.json, older.json.gz."]
    summary = write(tmp_path / "summary.json", nights)
    assert [outcome.is_new for outcome in add(settings, summary)] == [False, False, True]
    with pytest.raises(PromptError, match="no result file of inspect"):
        add(settings, tmp_path / "sweep", kind="inspect")


def test_a_table_that_grew_adds_its_new_nights(settings, tmp_path):
    rows = [{"date": f"2026-09-{night:02}", "name": "accuracy", "value": 0.5} for night in range(1, 4)]
    table = write(tmp_path / "ci.json", rows[:2])
    assert [outcome.is_new for outcome in add(settings, table, model="m")] == [True, True]
    write(table, rows)
    assert [outcome.is_new for outcome in add(settings, table, model="m")] == [False, False, True]


def test_two_results_conclude_nothing_and_repeats_of_each_are_judged(settings, tmp_path):
    old = [write(tmp_path / f"old{night}.json", make_night(night)) for night in range(6)]
    new = [write(tmp_path / f"new{night}.json", {**make_night(10 + night, 0.8), "tag": "new"}) for night in range(6)]

    def import_all(**names: str) -> tuple[str, str]:
        runs = [outcome.run.run_id for outcome in add(settings, *old, *new, **names)]
        return runs[-1], runs[5]

    def compare(pair: tuple[str, str]) -> Any:
        return DatabaseThread(settings).run(lambda connection: compare_stated(connection, *pair))

    values, judged, words = compare(import_all())
    assert not judged and "Nothing can be concluded from 1 and 1" in words and "--machine" in words
    shown = next(row for row in values if row["metric"] == "requests_per_s")
    assert shown["candidate_value"] < shown["baseline_value"]
    pair = import_all(machine="a")
    _, judged, words = compare(pair)
    assert judged["output_tokens_per_s"].name_change() == "worse" and "6 of this run and 6 of the baseline" in words
    report = DatabaseThread(settings).run(lambda connection: judge_run(connection, *pair))
    assert [check.check for check in report.failed] == ["output_tokens_per_s"]
    assert "of another session." in report.sentence and "--remeasure" not in report.sentence
    broken = write(tmp_path / "broken.json", {**make_night(20), "completed": 6, "failed": 6})
    failed = add(settings, broken, machine="a")[0].run.run_id
    report = DatabaseThread(settings).run(lambda connection: judge_run(connection, failed, pair[1]))
    assert [(check.check, check.candidate) for check in report.failed] == [("errors", 0.5)]
    assert [check.check for check in report.checks] == ["errors", "output_tokens_per_s", "tpot_p50_s"], "no E2E stated"


def test_a_file_without_its_models_name_takes_the_one_that_is_passed(settings, tmp_path):
    for name in ("latency", "throughput", "stage_0_lifecycle_metrics"):
        data = json.loads((TOTALS / f"{name}.json").read_text())
        nameless = write(tmp_path / f"{name}.json", {key: value for key, value in data.items() if key != "model_id"})
        with pytest.raises(PromptError, match=r"does not name a model.*hint: pass --model NAME"):
            add(settings, nameless)
        assert add(settings, nameless, model="m")[0].run.model == "m"


def test_results_with_a_limit_are_not_repeats_of_whole_ones(settings, tmp_path):
    data = json.loads(drop_samples(tmp_path).read_text())
    data["n-samples"]["choices"]["effective"] = 1
    limited = write(tmp_path / "limited.json", data)
    one, whole = add(settings, limited, drop_samples(tmp_path), kind="lm-eval")
    assert one.run.config_id != whole.run.config_id
    assert one.notes[0] == "choices: 1 of 60 documents were asked, by --limit."


def test_a_renamed_model_is_one_row_of_a_leaderboard_and_totals_have_pages(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    assert run("import", [str(drop_samples(tmp_path)), str(TOTALS / "serve.json"), "--timezone", "Europe/Berlin"]) == 0
    printed = capsys.readouterr().out.splitlines()
    first, second = (line.partition(":")[0] for line in printed[:2])
    assert second.startswith("20261128-18554") and ", 62.7 output tokens/s" in printed[1]
    assert printed[2] == f"Next: assayline report {second}"
    assert run("rename", [second, "--model", "SmolLM2", "--name", "choices+regex"]) == 0
    assert run("rename", [first, "--model", "SmolLM2"]) == 0
    for _ in range(2):
        rows = run_kit.query(settings, "select distinct model, prompt_set, name from runs where config_id is not null")
        assert rows == [("SmolLM2", "choices+regex", "choices+regex")]
        assert run("db rebuild", [second]) == 0
    for words in ([second], ["--history", first], ["--leaderboard"]):
        assert run("report", [*words, "--out", str(tmp_path / "page")]) == 0
    assert run("import", [str(TOTALS / "latency.json"), "--model", "SmolLM2"]) == 0
    board = make_report(settings, (), folder=tmp_path / "page", kind="leaderboard").document
    found = next(section for section in board.sections if section.key == "board").blocks[0]
    assert [column.header for column in found.columns] == [
        "model", "choices+regex", "choices+regex: output tokens/s", "choices+regex: TTFT p50",
        "vllm-bench latency: batch latency p50",
    ]  # fmt: skip
    assert [list(row) for row in found.cells] == [
        ["SmolLM2", "79.2%, not compared", "62.7", "12.2\u00a0ms", "31.2\u00a0ms"]
    ], "one row of the model, and nothing lost"
    assert board.headline == [
        "choices+regex: no completed run has scores, so there is nothing to compare.",
        "1 score is shown but not compared: SmolLM2 on choices+regex, its file has no samples, with which scores are "
        "paired.",
    ]


def change_eee(folder: Path) -> Path:
    shutil.copy(FILES / "eee" / "choices_samples.jsonl", folder)
    log = json.loads((FILES / "eee" / "choices.json").read_text())
    log["evaluation_results"][0]["score_details"]["score"] += 0.125
    return write(folder / "choices.json", log)


def change_latency(folder: Path) -> Path:
    data = json.loads((TOTALS / "detailed.json").read_text())
    return write(folder / "detailed.json", {**data, "p99_ttft_ms": data["p99_ttft_ms"] * 0.9})


@pytest.mark.parametrize(
    ("whole", "change", "named"),
    [
        (FILES / "eee" / "choices.json", change_eee, "accuracy mean"),
        (TOTALS / "detailed.json", change_latency, "ttft_s p99"),
        (FILES / "lm_eval", lambda folder: shutil.copytree(FILES / "lm_eval", folder / "lm_eval"), ""),
        (FILES / "inspect.json", lambda folder: FILES / "inspect.json", "standard_error accuracy"),  # an extract
    ],
    ids=["eee", "vllm-bench", "lm-eval", "inspect"],
)
def test_verify_prints_the_numbers_that_their_rows_do_not_give(tmp_path, capsys, whole, change, named):
    code = run("verify", [str(whole)])
    said = capsys.readouterr().out
    assert code == (1 if whole.suffix == ".json" and "inspect" in whole.name else 0), said
    changed = change(tmp_path)
    assert run("verify", [str(changed)]) == (1 if named else 0)
    said = capsys.readouterr().out
    assert not named or (f"  {named}" in said and "stated" in said and "the rows give" in said)


@pytest.mark.parametrize(
    ("table", "column", "named"),
    [
        ("metric_value", {"metric": "accuracy"}, "accuracy mean"),
        ("metric_value", {"metric": "output_tokens_per_s"}, "output_tokens_per_s mean"),
        ("metric_value", {"metric": "ttft_s", "statistic": "p95"}, "ttft_s p95"),
        ("run", {}, "run.parquet: duration_s total"),
        ("score", {}, "accuracy mean"),
        ("request", {}, "e2e_s p50"),
    ],
)
def test_verify_recomputes_the_numbers_of_exported_tables(tables, tmp_path, capsys, table, column, named):
    folder = shutil.copytree(tables, tmp_path / "tables")
    assert run("verify", [str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "stated" in line]
    assert len(lines) == 2 and all(int(line.split(", ")[1].split()[0]) >= 20 for line in lines), lines
    rows = pq.read_table(folder / f"{table}.parquet")
    values = {"run": "duration_s", "request": "e2e_s"}.get(table, "value")
    changed = [
        row | {values: row[values] * 0.9} if row[values] and column.items() <= row.items() else row
        for row in rows.to_pylist()
    ]
    pq.write_table(pa.Table.from_pylist(changed, rows.schema), folder / f"{table}.parquet")
    assert run("verify", [str(folder / "metric_value.parquet")]) == 1
    assert f"  {named}" in capsys.readouterr().out


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported tables of a run with scores and of one with times."""
    settings = run_kit.settings_in(tmp_path_factory.mktemp("tables"))
    add(settings, FILES / "lm_eval" / "results_2026-11-27T17-27-22.171738.json", FILES / "vllm_bench.json")
    folder = settings.data_dir / "tables"
    export_tables(settings, [], folder)
    return folder


def test_verify_says_what_cannot_be_recomputed(capsys):
    assert run("verify", [str(TOTALS / "serve.json")]) == 0
    said = capsys.readouterr().out
    assert "0 recomputed" in said and "cannot be recomputed: duration_s total" in said

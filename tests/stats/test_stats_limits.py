"""Limits by past values: rates equal to the truth in simulated kinds, and the command on published shapes."""

import json

import numpy as np
import pytest
import run_kit

from assayline.flows.cli import run
from assayline.imports.make import Names, import_files
from benchmarks.statistics_limits import KINDS, PUBLISHED, measure_limits


def test_rates_of_a_limit_are_those_of_the_truth_in_every_kind():
    rows = list(measure_limits(np.random.default_rng(1), draws=200, sizes=(30,)))
    assert [row["kind"] for row in rows] == list(KINDS)
    assert [row for row in rows if abs(row["30 values: error"]) > 0.02] == [], "200 draws: three standard errors"
    assert min(row["30 values: has it"] for row in rows) > 0.85
    assert max(row["30 values: limit for 5%"] for row in rows) < 0.1


def write_scores(path, right: list[float]) -> str:
    path.write_text("date,score\n" + "".join(f"2026-{at},{score}\n" for at, score in enumerate(right)))
    return str(path)


def test_noise_answers_for_a_column_and_its_exit_code_follows_the_rate(tmp_path, capsys):
    path = write_scores(tmp_path / "ci.csv", PUBLISHED)
    assert run("noise", ["--values", path, "--column", "score", "--limit", "0.85", "--prompts", "200"]) == 0
    said = capsys.readouterr().out
    assert "At 0.85, an unchanged build fails in 8.2% (95%: 3.6% to 17.8%), by these 61 values." in said
    assert "7 values equal to it passed; if such builds fail too: 19.7% (95%: 11.6% to 31.3%)." in said
    assert "mean of 3 runs" in said
    for limit, rate in (("0.8401", "3.3%"), ("0.8399", "0%")):
        assert run("noise", ["--values", path, "--limit", limit]) == 0
        assert f"an unchanged build fails in {rate} (" in capsys.readouterr().out
    for rate, code in (("0.03", 1), ("0.15", 0)):
        assert run("noise", ["--values", path, "--limit", "0.85", "--max-false-alarms", rate]) == code
    capsys.readouterr()
    slow = write_scores(tmp_path / "slow.csv", [-score for score in PUBLISHED])
    assert run("noise", ["--values", slow, "--limit", "-0.85", "--lower-is-better"]) == 0
    assert "fails in 8.2%" in (said := capsys.readouterr().out) and "fail too: 19.7%" in said
    assert run("noise", ["--values", path, "--column", "date"]) == 2
    assert "--column" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_noise_reads_the_tables_that_import_reads(settings, tmp_path, capsys, form):
    values = {"gsm8k": [0.8, 0.82, 0.81, 0.83, 0.84, 0.8], "ttft_s": [0.2, 0.21, 0.22, 0.2, 0.25, 0.3]}
    rows = [
        {"date": f"2026-09-0{night + 1}", "name": name, "value": found[night], "unit": "share" * (name == "gsm8k")}
        for name, found in values.items() for night in range(6)
    ]  # fmt: skip
    lines = [",".join(map(str, row.values())) for row in rows]
    texts = {
        "csv": "\ufeffdate,name,value,unit\n\n" + "\n".join(lines),
        "json": json.dumps(rows),
        "jsonl": "\n".join(map(json.dumps, rows)),
    }
    path = tmp_path / f"nights.{form}"
    path.write_text(texts[form], encoding="utf-8")
    imported = list(import_files(settings, None, [path], Names(model="m")))
    stored = "select value from metric_value where metric = 'ttft_s' and value is not null order by run_id"
    assert len(imported) == 6 and [value for (value,) in run_kit.query(settings, stored)] == values["ttft_s"]
    assert run("noise", ["--values", str(path), "--limit", "0.25", "--lower-is-better"]) == 2
    assert (
        "The names of values are gsm8k, ttft_s, and one is judged. hint: pass it as --metric" in capsys.readouterr().err
    )
    asked = ["--values", str(path), "--metric", "ttft_s", "--limit", "0.26", "--lower-is-better"]
    assert run("noise", asked) == 0
    assert "fails in 16.7%" in capsys.readouterr().out


def test_noise_counts_the_values_after_a_shift_and_widens_for_dependence(tmp_path, capsys):
    path = tmp_path / "values.json"
    path.write_text(
        json.dumps([*np.random.default_rng(1).normal(10, 1, 41), *np.random.default_rng(2).normal(30, 1, 20)])
    )
    assert run("noise", ["--values", str(path), "--limit", "28"]) == 0
    said = capsys.readouterr().out
    assert "The last 20 of 61 values are another level" in said and "by these 20 values" in said
    dependent = [float(np.sin(place / 3)) for place in range(40)]
    path.write_text(json.dumps(dependent))
    assert run("noise", ["--values", str(path), "--limit", "-0.9"]) == 0
    assert "Neighbors depend on each other" in capsys.readouterr().out

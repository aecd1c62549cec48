"""benchmarks.many_runs, tiny: what it prints is what it did."""

import json

import pytest

from benchmarks.many_runs import main


@pytest.mark.rare
@pytest.mark.slow
def test_many_runs_benchmark_times_queries_and_cleans_up(tmp_path, capsys):
    main(["--runs", "10", "--requests", "20", "--folder", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert (found["runs"], found["requests"], found["measured_runs"]) == (10, 200, 10)
    assert found["metric_values"] > 10 * 50
    assert {"compare_runs", "compare_configs"} <= found["comparison_cpu_s"].keys()
    assert found["page_cpu_s"].keys() == {"numbers", "report"}
    assert all(cpu_s > 0 for cpu_s in found["question_cpu_s"].values())
    assert found["database_mib"] >= found["database_mib_without_metrics"] > 0
    assert any(line.startswith("comparison: compare_runs: ") for line in lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [["--runs", "9"], ["--requests", "0"]])
def test_sizes_that_make_no_sense_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(wrong)
    assert "must be 10 or more" in capsys.readouterr().err

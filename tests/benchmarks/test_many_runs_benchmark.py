"""benchmarks.many_runs, tiny: what it prints is what it did."""

import json

import pytest

from benchmarks.many_runs import main


@pytest.mark.rare
@pytest.mark.slow
def test_it_times_every_model_and_leaves_nothing(tmp_path, capsys):
    main(["--runs", "10", "--requests", "20", "--computed-runs", "1", "--folder", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert (found["runs"], found["requests"], found["kept_runs"]) == (10, 200, 10)
    models = {model["model"]: model for model in found["models"]}
    assert models["run_summary"]["rows"] == 10
    assert models["stg_requests"]["rows"] == 200
    assert models["latency_percentile"]["rows"] == 10 * 35
    assert models["token_gap"]["rows"] > 100, "some runs have token times"
    assert models["error_breakdown"]["rows"] <= 3 and models["engine_history"]["rows"] == 10
    for model in models.values():
        assert model["kept_s"] > 0 and model["computed_s"] > 0
    assert {"compare_runs", "compare_configs"} <= found["comparison_cpu_s"].keys()
    assert found["page_s"].keys() == found["page_s_not_kept"].keys() == {"numbers", "report"}
    assert found["database_mib"] >= found["database_mib_without_kept"] > 0
    assert any(line.startswith("run_summary ") for line in lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [["--runs", "9"], ["--requests", "0"], ["--computed-runs", "-1"]])
def test_sizes_that_make_no_sense_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(wrong)
    assert "must be 10 or more" in capsys.readouterr().err

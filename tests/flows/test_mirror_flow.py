"""A machine is lost in the middle of a run: another one restores the run from the mirror and resumes it to its end."""

import json
import shutil
from pathlib import Path

import flow_kit
import pytest
import server_kit

from assayline.store.parts import ROWS

LIMIT = 32


@pytest.mark.prefect
def test_a_run_whose_machine_is_lost_is_restored_elsewhere_and_answers_every_request_once(
    served_env, prefect_client, slow_spec, data_dir, tmp_path, monkeypatch
):
    """SIGKILL of the flow, whose data folder is gone with it."""
    slow_spec["prompts"]["limit"] = LIMIT
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", slow_spec)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(data_dir / "cache", elsewhere / "cache")
    log, objects = tmp_path / "lost.log", tmp_path / "store" / "objects"
    with server_kit.serving_store(objects) as port:
        server_kit.make_bucket(port, "runs")
        env = {**served_env, **server_kit.store_environment(port), "ASSAYLINE_MIRROR_URL": "s3://runs/mirror"}

        def list_answers() -> list[Path]:
            return [path for path in objects.rglob("*rows.parquet*") if path.parent.name == "completions"]

        def count_answers() -> int:
            names = {path.name for path in list_answers()}
            return sum(int(match[1]) for match in map(ROWS.search, names) if match)

        with flow_kit.started(flow_kit.evaluate_command(spec), env, log) as process:
            flow_kit.wait_for(
                lambda: count_answers() >= 5 and list(objects.rglob("run.json*")), 120, "the mirror has the first files"
            )
            process.kill()
            process.wait(10)
        flow_kit.assert_nothing_runs(data_dir)
        shutil.rmtree(data_dir)
        mirrored = count_answers()
        assert 5 <= mirrored < LIMIT

        for name in env.keys() - served_env.keys():
            monkeypatch.setenv(name, env[name])
        monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(elsewhere))
        restored = flow_kit.run_here("restore", "last")
        assert restored.code == 0, restored.err
        run_id = restored.out.split()[1].rstrip(":")
        assert f"The run is unfinished. hint: resume it with `assayline evaluate --resume {run_id}`." in restored.out
        assert flow_kit.count_in_parts(elsewhere) == mirrored
        resumed = flow_kit.run_here("evaluate", "--resume", run_id)
        assert resumed.code == 0, resumed.out + resumed.err
        kept = next(path for path in objects.rglob("run.json*") if path.is_file() and '"attempt"' in path.read_text())
        assert json.loads(kept.read_text())["state"] == "completed"
    assert flow_kit.query(elsewhere, "select state, attempt from runs where run_id = ?", run_id) == [("completed", 2)]
    answers = flow_kit.query(elsewhere, "select count(*), count(distinct request_id) from completions")
    assert answers == [(LIMIT, LIMIT)]
    assert flow_kit.query(elsewhere, "select is_sound from request_integrity") == [True]
    assert flow_kit.count_in_parts(elsewhere) == LIMIT, "no request was answered twice"

"""Names and folders full of quotes, semicolons, $(), brackets, line breaks: to SQL, shell and screen they are text."""

import re
import shutil
from pathlib import Path
from typing import Any

import flow_kit
import pytest

from assayline.errors import StoreError
from assayline.flows.live.reporting import make_key
from assayline.store.database import connect

HOSTILE = """d'a"t;a $(touch pwned) `touch pwned` [x]*{y} ''); drop table runs; -- [red] :smile: $$ %s ! é
line two"""
"""One part of a path. It lacks the question mark and the backslash, with which DuckDB opens another file."""
NAME = f"{HOSTILE} [/red] ? \\ \\n"


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    folder = tmp_path / HOSTILE
    folder.mkdir()
    return folder


@pytest.fixture
def hostile_spec(fake_spec: dict[str, Any], modest_model: Path, hostile_folder: Path) -> dict[str, Any]:
    """Everything that a spec can name, named like this."""
    model = shutil.copytree(modest_model, hostile_folder / f"model {HOSTILE}")
    prompts = flow_kit.write_rows(hostile_folder / f"{HOSTILE}.jsonl", 12)
    template = hostile_folder / f"chat {HOSTILE}.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    source = {"kind": "file", "path": str(prompts)}
    return {
        **fake_spec,
        "name": NAME,
        "model": str(model),
        "prompts": {**fake_spec["prompts"], "name": NAME, "source": source},
        "chat": {"template": str(template), "system": NAME},
        "engine": {"backend": "fake", "env": {"A": NAME}},
        "scorers": [{"kind": "exact_match", "name": NAME}],
        "slos": [{"name": NAME, "e2e_s": 60}],
        "shard_requests": 5,
    }


@pytest.fixture
def hostile_env(served_env: dict[str, str], data_dir: Path, hostile_folder: Path) -> dict[str, str]:
    """The data folder has a database and the charts' program already, too."""
    folder = shutil.copytree(data_dir, hostile_folder / f"data {HOSTILE}")
    return {**served_env, "ASSAYLINE_DATA_DIR": str(folder)}


@pytest.mark.prefect
def test_run_with_hostile_names_is_stored_and_printed(hostile_spec, hostile_env, prefect_client, tmp_path, monkeypatch):
    spec = flow_kit.write_spec(tmp_path / f"spec {HOSTILE}.yaml", hostile_spec)
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", hostile_env["ASSAYLINE_DATA_DIR"])
    run = flow_kit.run_here("evaluate", spec)
    assert run.code == 0, run.err
    assert NAME in run.out
    for sign in "[/red]", "[x]*{y}":
        assert sign in run.out.partition("SQL, in any")[0].partition("metric")[2], "in the metric table, too"

    data_dir = Path(hostile_env["ASSAYLINE_DATA_DIR"])
    columns = "name, prompt_set, model, spec_json::json ->> '$.chat.system', state, expected_requests"
    assert flow_kit.query(data_dir, f"select {columns} from runs") == [
        (NAME, NAME, hostile_spec["model"], NAME, "completed", 12)
    ]
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    assert flow_kit.query(data_dir, "select count(*) from scores where value = 1") == [12]

    assert not list(tmp_path.rglob("pwned"))
    assert not (flow_kit.ROOT / "pwned").exists()


@pytest.mark.prefect
def test_an_interrupted_run_goes_on_and_is_rebuilt(hostile_spec, hostile_env, prefect_client, tmp_path, monkeypatch):
    """Resuming and rebuilding put paths and ids into SQL of their own. The bad row stops the engine, too."""
    data_dir = Path(hostile_env["ASSAYLINE_DATA_DIR"])
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(data_dir))
    rows = Path(hostile_spec["prompts"]["source"]["path"])
    good = rows.read_text()
    rows.write_text(good + "{broken\n")
    hostile_spec["max_error_share"] = 0
    broken = flow_kit.run_here("evaluate", flow_kit.write_spec(tmp_path / "spec.yaml", hostile_spec))
    assert broken.code == 3, broken.err
    assert "line 13: not JSON" in broken.err
    assert "Traceback" not in broken.err

    (run_id,) = flow_kit.query(data_dir, "select run_id from runs")
    resumed = flow_kit.run_here("evaluate", "--resume", run_id)
    assert "line 13: not JSON" in resumed.err, "it resumed, as far as it can"
    rebuilt = flow_kit.run_here("db rebuild", run_id)
    assert rebuilt.code == 0, rebuilt.err
    assert flow_kit.query(data_dir, "select count(*) from requests") == [10]


@pytest.mark.parametrize("sign", ["?", "\\", "\udcff"])
def test_data_folder_that_duckdb_cannot_open_is_rejected(tmp_path, sign):
    path = tmp_path / f"a{sign}b" / "test.duckdb"
    with pytest.raises(StoreError, match="which DuckDB does not accept in a path"), connect(path, 0):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("arithmetic", "report-arithmetic"),
        ("n engine.max_concurrency=8", "report-n-engine-max-concurrency-8-e05fb80d"),
        ("# *a* <b>\n|x|", "report-a-b-x-"),
        ("日本", "report-"),
        ("a" * 200, "report-" + 60 * "a" + "-"),
    ],
)
def test_make_key_gives_names_of_other_characters_a_digest(name, key):
    made = make_key("report", name)
    assert made.startswith(key) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", made)
    assert name == "arithmetic" or made != make_key("report", f"{name}.")

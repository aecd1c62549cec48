"""A token in the environment is in no file, database, log or message that a run leaves behind.

Everything is read: files byte by byte, and what is compressed (Parquet, DuckDB) row by row. That the reading would find
the token is shown with the name of the run, which must be in all these places.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import flow_kit
import pyarrow.parquet as pq
import pytest

SECRET = "hf_vErYsEcReT0123456789"
NAME = "canary-of-a-run"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Prefect's own folder, with the database of the temporary server that the command starts."""
    return tmp_path / "prefect-home"


@pytest.fixture
def secret_env(alone_env: dict[str, str], home: Path) -> dict[str, str]:
    """Both names of the token, and everybody as talkative as can be."""
    return {
        **alone_env,
        "HF_TOKEN": SECRET,
        "ASSAYLINE_HF_TOKEN": SECRET,
        "ASSAYLINE_TRACEBACKS": "true",
        "PREFECT_HOME": str(home),
        "PREFECT_LOGGING_LEVEL": "DEBUG",
        "PREFECT_LOGGING_SERVER_LEVEL": "DEBUG",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }


@pytest.fixture
def named_spec(fake_spec: dict[str, Any]) -> dict[str, Any]:
    return {**fake_spec, "name": NAME, "prompts": {**fake_spec["prompts"], "name": NAME}, "chat": {"system": NAME}}


def read_all(folder: Path) -> dict[Path, str]:
    """The text of every file below, rows instead of bytes where they are compressed."""
    return {file: read_text(file) for file in folder.rglob("*") if file.is_file()}


def read_text(file: Path) -> str:
    match file.suffix:
        case ".parquet":
            return repr(pq.read_table(file).to_pylist())
        case ".duckdb":
            with duckdb.connect(file, read_only=True) as connection:
                tables = connection.execute("select schema_name || '.' || table_name from duckdb_tables()").fetchall()
                return "\n".join(repr(connection.execute(f"from {table}").fetchall()) for (table,) in tables)
        case ".db":
            with closing(sqlite3.connect(file)) as connection:
                return "\n".join(connection.iterdump())
    return file.read_bytes().decode("utf-8", "replace")


def assert_kept_secret(run: flow_kit.Finished, data_dir: Path, home: Path) -> None:
    """The token is nowhere; the run's name is wherever something is kept."""
    texts = {Path("stdout"): run.out, Path("stderr"): run.err, **read_all(data_dir), **read_all(home)}
    assert [path for path, text in texts.items() if SECRET in text] == []
    with_name = {path.suffix or path.name for path, text in texts.items() if NAME in text}
    assert {".duckdb", ".db", ".parquet", ".json", "stderr"} <= with_name


@pytest.mark.prefect
def test_a_refused_spec_does_not_show_its_secret(named_spec, data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAYLINE_TRACEBACKS", "true")
    engine = {"backend": "fake", "env": {"HF_TOKEN": SECRET}}
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", {**named_spec, "engine": engine})
    run = flow_kit.run_here("evaluate", spec)
    assert run.code == 2
    assert "engine.env.HF_TOKEN" in run.err and "the name indicates a secret" in run.err
    assert SECRET not in run.out + run.err
    assert not data_dir.exists()


@pytest.mark.prefect
@pytest.mark.vllm
@pytest.mark.parametrize("end", [pytest.param("good", marks=pytest.mark.rare), "bad"])
def test_a_real_engine_and_its_log_keep_the_token(named_spec, tiny_model, secret_env, data_dir, home, tmp_path, end):
    """Good: an engine that answers. Bad: one that does not start, and writes a traceback of vLLM's."""
    flow_kit.copy_prefect_database(home)
    args = {"max_model_len": 256 if end == "good" else 10**6, "max_num_seqs": 8, "dtype": "float32"}
    engine = {"env": flow_kit.ONE_THREAD, "args": {**args, "enforce_eager": True, "kv_cache_memory_bytes": 2**27}}
    named_spec |= {"model": str(tiny_model), "engine": engine}
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", named_spec)
    run = flow_kit.run_command(flow_kit.evaluate_command(spec, "--prefect"), secret_env)
    assert run.code == (0 if end == "good" else 2), run.err
    assert NAME in run.out or end == "bad"
    (log,) = data_dir.glob("runs/*/logs/*.log")
    assert "DEBUG" in log.read_text()
    if end == "bad":
        assert "Traceback (most recent call last)" in log.read_text()
        assert "vLLM rejects engine.args.max_model_len 1000000" in run.err
    assert_kept_secret(run, data_dir, home)

"""The tables of `main` as a folder of Parquet files, read by a DuckDB that has no database."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import run_kit
from flow_kit import database_held

from assayline.errors import SpecError
from assayline.export import make
from assayline.export.make import export_tables
from assayline.flows.cli import db_export as command
from assayline.settings import Settings

pytestmark = pytest.mark.slow
TABLES = (
    "answer", "comparison", "engine", "frontier", "judge_audit", "judgement", "label", "load_point", "metric_value",
    "prompt", "ranking", "request", "run", "score", "timeline", "token", "verdict", "verdict_prompt",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, make_spec: Any) -> Iterator[tuple[Settings, list[str]]]:
    """Two runs on the fake engine: settings and run ids."""
    settings = run_kit.settings_in(tmp_path_factory.mktemp("tables"))
    spec = make_spec(engine={"backend": "fake"}, prompts={"limit": 12}, scorers=["exact_match"])
    yield settings, [run_kit.complete(spec, settings, "never").run_id for _ in range(2)]


def test_export_tables_has_the_rows_and_comments_of_the_database(
    runs: tuple[Settings, list[str]], tmp_path: Path
) -> None:
    settings, _ = runs
    exported = export_tables(settings, output=tmp_path / "lake")
    assert exported.files == [tmp_path / "lake"] and exported.sentences == ["2 runs, 24 requests."]
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == [f"{table}.parquet" for table in TABLES]
    with duckdb.connect(settings.database_path, read_only=True) as connection:
        for table in TABLES:
            file = tmp_path / "lake" / f"{table}.parquet"
            for one, other in ((table, f"'{file}'"), (f"'{file}'", table)):
                assert connection.execute(f"(from {one}) except all (from {other})").fetchall() == [], table
            known = "from duckdb_columns() where schema_name = 'main' and table_name = ? order by column_index"
            columns = connection.execute(f"select column_name, data_type, comment {known}", [table]).fetchall()
            described = connection.execute(f"describe from '{file}'").fetchall()
            assert [column[:2] for column in described] == [column[:2] for column in columns]
            metadata = connection.execute(f"select decode(key), decode(value) from parquet_kv_metadata('{file}')")
            texts = dict(metadata.fetchall())
            assert json.loads(texts["column_comments"]) == {name: comment for name, _, comment in columns}
            views = "select comment from duckdb_views() where schema_name = 'main' and view_name = ?"
            assert connection.execute(views, [table]).fetchall() == [(texts["comment"],)]


def test_export_tables_can_be_joined_without_the_database(runs: tuple[Settings, list[str]], tmp_path: Path) -> None:
    settings, (first, second) = runs
    export_tables(settings, [second], output=tmp_path / "lake")
    with duckdb.connect() as connection:
        for table in TABLES:
            connection.execute(f"create view {table} as from '{tmp_path}/lake/{table}.parquet'")
        query = (
            "select run_id, count(*), count(answer.text), count(distinct prompt.target), "
            "bool_and(answer.target = prompt.target and answer.question = prompt.messages_json ->> '$[0].content' "
            "and answer.scores[score.scorer] = value and answer.e2e_s = request.e2e_s) "
            "from request join answer using (run_id, request_id, prompt_id, occurrence, repeat_index) "
            "join run using (run_id) join prompt using (run_id, prompt_id, occurrence) "
            "join score using (run_id, prompt_id, occurrence, repeat_index) group by run_id"
        )
        ((run_id, requests, texts, targets, is_in_one_row),) = connection.execute(query).fetchall()
        assert (run_id, requests, texts) == (second, 12, 12) and targets > 1
        assert is_in_one_row, "question, target, score and times are in answer, too"
    with pytest.raises(SpecError, match=rf"Run 'nobody' is not in .*newest: {second}, {first}"):
        export_tables(settings, ["nobody"], output=tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake"]


def test_export_tables_works_while_others_read_and_replaces_only_by_force(
    runs: tuple[Settings, list[str]], tmp_path: Path
) -> None:
    settings, _ = runs
    with database_held(settings.data_dir, read_only=True):
        export_tables(settings, output=tmp_path / "lake")
        with pytest.raises(SpecError, match="already exists"):
            export_tables(settings, output=tmp_path / "lake")
        export_tables(settings, output=tmp_path / "lake", force=True)
    (tmp_path / "lake" / "thesis.tex").write_text("x")
    export_tables(settings, output=tmp_path / "lake", force=True)
    files = {*(f"{table}.parquet" for table in TABLES), "thesis.tex"}
    assert {path.name for path in (tmp_path / "lake").iterdir()} == files, "nothing unfinished"


def test_export_command_takes_many_runs_for_tables_alone(
    runs: tuple[Settings, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, (first, second) = runs
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    for given, folder in (
        (["--all"], settings.data_dir),
        ([first, second, "--force"], settings.data_dir),
        ([first], settings.run_dir(first)),
    ):
        assert command.run(given) == 0
        assert capsys.readouterr().out == f"{folder}/exports/tables\n"
        found = duckdb.execute(f"select run_id from '{folder}/exports/tables/run.parquet' order by run_id").fetchall()
        assert found == [(run_id,) for run_id in ([first] if given == [first] else [first, second])]
    for wrong in ([], [first, "--all"]):
        with pytest.raises(SystemExit):
            command.run(wrong)
    assert "pass RUN_IDs or --all, not both" in capsys.readouterr().err


def test_export_tables_leaves_nothing_when_interrupted(
    runs: tuple[Settings, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def copy_for_ever(connection: Any, *_: Any) -> int:
        begun.set()
        connection.execute("select count(*) from range(10_000_000) as one, range(10_000_000) as other").fetchall()
        return 0

    monkeypatch.setattr(make, "_copy", copy_for_ever)
    threading.Thread(target=lambda: begun.wait(20) and os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        export_tables(runs[0], output=tmp_path / "lake")
    assert list(tmp_path.iterdir()) == []

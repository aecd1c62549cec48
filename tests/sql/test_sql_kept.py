"""Metrics that are kept: the same as computed ones, for every model and run; forgotten with the rows they are of."""

import dataclasses
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import duckdb
import pytest

from assayline.comparison.queries import read_costs, read_side
from assayline.errors import StoreError
from assayline.report.run.comparison import read_comparison
from assayline.store.database import connect, list_models
from assayline.store.metrics import (
    forget_metrics,
    is_kept,
    keep_metrics,
    list_unkept,
    read_all_kept,
    read_benchmark_kept,
    read_kept,
    read_metric_table,
    stage_run,
)
from assayline.store.parts import TABLES
from assayline.store.runs import delete_run
from assayline.store.views import KEPT, LIVE, NOT_OF_RUNS, read_model, work_in
from benchmarks.invented_runs import invent_runs

pytestmark = pytest.mark.slow

RUNS = 26
"""With errors, with an engine that died, with token times, and with none of it; see invented_runs."""
REQUESTS = 24
MODELS = [read_model(file) for file in list_models()]


@pytest.fixture(scope="module")
def database(empty_database, tmp_path_factory):
    """Runs, two of them odd: one under way, one of nothing."""
    path = shutil.copy(empty_database, tmp_path_factory.mktemp("kept") / "runs.duckdb")
    connection = duckdb.connect(path)
    invent_runs(connection, RUNS, REQUESTS)
    for number in (*range(10, 15), *range(16, 24)):  # what they have, others have too: 15 has an error row
        delete_run(connection, f"run-{number:06d}", list(TABLES))
    connection.execute("update runs set state = 'running', finished_at = null where run_id = 'run-000002'")
    for table in ("prompts", "requests", "completions", "engine_events", "telemetry", "scorers", "scores"):
        connection.execute(f"delete from {table} where run_id = 'run-000005'")
    connection.execute("delete from completions where run_id = 'run-000009' and hash(request_id) % 3 = 0")
    connection.close()
    return path


@pytest.fixture
def runs(database, tmp_path):
    """A database with runs that a test may change."""
    with duckdb.connect(shutil.copy(database, tmp_path / "runs.duckdb")) as connection:
        yield connection


def list_kept_models(connection):
    tables = "select table_name from duckdb_tables() where schema_name = ? and table_name <> 'kept_runs'"
    return sorted(name for (name,) in connection.execute(tables, [KEPT]).fetchall())


def list_run_views(connection):
    columns = "select distinct table_name from duckdb_columns() where schema_name = ? and column_name = 'run_id'"
    views = [name for (name,) in connection.execute(columns, [LIVE]).fetchall()]
    return sorted({model.name for model in MODELS} & set(views))


def read_all(connection, models):
    return {model: connection.execute(f"select * from {model} order by all").fetchall() for model in models}


def rounded(rows):
    """Numbers to ten digits: DuckDB adds in no fixed order."""
    return sorted(
        (tuple(f"{value:.10g}" if isinstance(value, float) else value for value in row) for row in rows), key=str
    )


def list_run_ids(connection):
    return [run_id for (run_id,) in connection.execute("select run_id from runs order by run_id").fetchall()]


def test_kept_rows_are_those_that_were_computed_whatever_else_is_kept(runs):
    """A model that looks beyond its own run is found here: what it sees of others changes as they are kept."""
    views = [model.name for model in MODELS if model.is_view]
    computed = read_all(runs, views)
    assert all(computed[name] for name in list_kept_models(runs)), "each model has rows here, or nothing is proven"
    run_ids = list_run_ids(runs)
    for number, run_id in enumerate(reversed(run_ids), 1):
        if number % 2:
            with stage_run(runs, run_id):
                assert keep_metrics(runs, run_id)
        else:
            assert keep_metrics(runs, run_id)
        if number in (len(run_ids) // 2, len(run_ids)):
            with work_in(runs, KEPT) if number == len(run_ids) else nullcontext():  # at last everything is there
                found = read_all(runs, views)
            for view in views:
                assert rounded(found[view]) == rounded(computed[view]), view
    live = "select (select count(*) from {0}.run_ids), (select count(*) from {0}.requests)"
    assert runs.execute(live.format(LIVE)).fetchall() == [(0, 0)]


def test_most_models_are_kept(runs):
    kept = list_kept_models(runs)
    assert {"run_summary", "latency_percentile", "engine_history", "timeline", "accuracy"} <= set(kept)
    assert not {"stg_requests", "token_gap"} & set(kept)


def test_what_is_kept_is_read_and_not_computed(runs):
    keep_metrics(runs, "run-000000")
    before = read_metric_table(runs, "run-000000")
    runs.execute("delete from completions where run_id = 'run-000000'")  # by hand, past all that forgets
    assert read_metric_table(runs, "run-000000") == before
    forget_metrics(runs, "run-000000")
    answered = {row["metric"]: row["value"] for row in read_metric_table(runs, "run-000000")}["answered"]
    assert (before[0]["value"], answered) == (REQUESTS, 0)


def test_a_kept_run_is_read_where_it_is_kept(runs):
    keep_metrics(runs, "run-000000")
    read = {}
    for run_id, schema in (("run-000000", KEPT), ("run-000001", "main")):
        with read_kept(runs, run_id):
            assert runs.execute("select current_schema()").fetchall() == [(schema,)]
            with read_kept(runs, "run-000000"):
                pass
            assert runs.execute("select current_schema()").fetchall() == [(schema,)]
            for view in list_run_views(runs) if schema == KEPT else ():
                read[view] = runs.execute(f"from {view} where run_id = '{run_id}'").fetchall()
        assert runs.execute("select current_schema()").fetchall() == [("main",)]
    for view, rows in read.items():
        found = runs.execute(f"from main.{view} where run_id = 'run-000000'").fetchall()
        assert rounded(rows) == rounded(found), view
    assert any(rows for rows in read.values())
    with pytest.raises(duckdb.Error), read_kept(runs, "run-000000"):
        runs.execute("select nothing")
    assert runs.execute("select current_schema()").fetchall() == [("main",)]


def test_comparisons_of_kept_runs_say_the_same_and_compute_nothing(runs):
    candidate, baseline = "run-000000", "run-000003"

    def compare():
        sides = [dataclasses.astuple(read_side(runs, run_id)) for run_id in (candidate, baseline)]
        costs = [(metric, *cost) for metric, cost in read_costs(runs, candidate).items()]
        found = read_comparison(runs, candidate, baseline)
        tables = (found.scores, found.metrics, found.worse, found.better)
        return [rounded(rows) for rows in (sides, costs, *(map(dict.values, rows) for rows in tables))]

    computed = compare()
    for run_id in (candidate, baseline):
        keep_metrics(runs, run_id)
    runs.execute("update completions set last_token_at_s = 1e6, finished_at_s = 1e6")  # past all that forgets
    assert compare() == computed and all(computed[:4])
    forget_metrics(runs, baseline)
    with read_kept(runs, candidate, baseline):
        assert runs.execute("select current_schema()").fetchall() == [("main",)], "one is computed, so both are"


def test_all_that_ended_is_read_where_it_is_kept_if_nothing_is_left_to_compute(runs):
    for run_id in list_run_ids(runs)[3:]:
        delete_run(runs, run_id, list(TABLES))

    def schema_of_all(*run_ids):
        with read_all_kept(runs, *run_ids):
            return runs.execute("select current_schema()").fetchall()[0][0]

    keep_metrics(runs, "run-000000")
    assert schema_of_all() == "main", "run-000001 has ended, too"
    keep_metrics(runs, "run-000001")
    assert schema_of_all() == schema_of_all("run-000000") == KEPT
    assert schema_of_all("run-000002") == "main", "it is under way, and asked for"
    with read_kept(runs):
        assert runs.execute("select current_schema()").fetchall() == [("main",)], "of no run in particular"


def test_a_benchmark_is_read_where_it_is_kept_if_its_completed_runs_are(runs):
    read = {}
    for name in ("before", "after"):
        with read_benchmark_kept(runs, "sweep"):
            read[name] = [runs.execute("select current_schema()").fetchall()[0][0]]
            read[name] += runs.execute("from benchmark_metric order by all").fetchall()
        for run_id in ("run-000004", "run-000024"):
            keep_metrics(runs, run_id)
    assert (read["before"][0], read["after"][0]) == ("main", KEPT)
    assert rounded(read["before"][1:]) == rounded(read["after"][1:]) and len(read["after"]) > 10


def test_a_database_can_be_renamed_and_attached(tmp_path):
    with connect(tmp_path / "first.duckdb", 0) as connection:
        invent_runs(connection, 2, 10)
        keep_metrics(connection, "run-000000")
    (tmp_path / "first.duckdb").rename(tmp_path / "second.duckdb")
    with duckdb.connect() as connection:
        connection.execute(f"attach '{tmp_path / 'second.duckdb'}' as elsewhere (read_only)")
        query = "select run_id, ok_requests from elsewhere.run_summary order by run_id"
        assert connection.execute(query).fetchall() == [("run-000000", 10), ("run-000001", 10)]
        assert connection.execute("select count(*) from elsewhere.stg_requests").fetchall() == [(20,)]


def test_a_run_is_kept_by_itself_and_once(runs):
    for _ in range(2):
        keep_metrics(runs, "run-000003")
    rows = runs.execute(f"select run_id from {KEPT}.kept_runs").fetchall()
    assert rows == [("run-000003",)]
    for model in list_kept_models(runs):
        ids = runs.execute(f"select distinct run_id from {KEPT}.{model}").fetchall()
        assert ids in ([("run-000003",)], []), model
    assert runs.execute(f"select count(*) from {KEPT}.run_summary").fetchall() == [(1,)]
    assert runs.execute("select count(*) from duckdb_views() where temporary and not internal").fetchall() == [(0,)]


def test_forgetting_leaves_nothing_and_other_runs_alone(runs):
    for run_id in ("run-000003", "run-000004"):
        keep_metrics(runs, run_id)
    forget_metrics(runs, "run-000003")
    assert not is_kept(runs, "run-000003") and is_kept(runs, "run-000004")
    for model in ["kept_runs", *list_kept_models(runs)]:
        ids = runs.execute(f"select distinct run_id from {KEPT}.{model}").fetchall()
        assert ids in ([("run-000004",)], []), model


def test_keeping_fails_as_a_whole(runs):
    runs.execute(f"drop table {KEPT}.run_summary")
    runs.execute(f"create table {KEPT}.run_summary (run_id varchar)")
    with pytest.raises(duckdb.Error):
        keep_metrics(runs, "run-000003")
    assert not is_kept(runs, "run-000003")
    assert runs.execute(f"select count(*) from {KEPT}.engine_history").fetchall() == [(0,)]


def test_a_run_that_is_not_there_cannot_be_kept(runs):
    with pytest.raises(StoreError, match="no run elsewhere in the database"):
        keep_metrics(runs, "elsewhere")
    assert not is_kept(runs, "elsewhere")


def test_a_run_id_is_a_value_and_not_sql(runs):
    runs.execute("update runs set run_id = 'it''s' where run_id = 'run-000000'")
    assert keep_metrics(runs, "it's")
    assert runs.execute(f"select run_id from {KEPT}.run_summary").fetchall() == [("it's",)]


def test_runs_under_way_are_not_offered_for_keeping(runs):
    assert set(list_run_ids(runs)) - set(list_unkept(runs)) == {"run-000002"}
    keep_metrics(runs, "run-000000")
    assert set(list_run_ids(runs)) - set(list_unkept(runs)) == {"run-000000", "run-000002"}


@pytest.mark.parametrize("model", [model for model in MODELS if model.is_view], ids=lambda model: model.name)
def test_a_model_that_is_kept_reads_nothing_that_changes_without_its_run(model):
    """Pinning a baseline forgets nothing, and time goes by."""
    code = re.sub(r"'[^']*'|--.*", "", model.definition)
    found = re.findall(rf"\b(?:{'|'.join(NOT_OF_RUNS)}|now|current_\w+|today|random|uuid)\b", code)
    assert not found or not model.is_kept


def test_lines_about_keeping_are_understood(tmp_path):
    def read(header, kind="view"):
        (tmp_path / "10_m.sql").write_text(f"-- Grain: one row per run.\n{header}\ncreate or replace {kind} m as x;\n")
        return read_model(tmp_path / "10_m.sql")

    assert read("-- Of runs.").is_kept
    assert not read("-- keep: no").is_kept
    assert read("-- keep: as requests").table == "requests"
    split = read("-- More.\n-- keep: by metric (a, b_s)")
    assert (split.column, split.values) == ("metric", ("a", "b_s"))
    for wrong in ("-- keep: no, never", "-- keep: yes", "-- keep: no\n-- keep: no", "-- keep:", "-- keep: by metric"):
        with pytest.raises(ValueError, match=r"10_m\.sql says"):
            read(wrong)
    with pytest.raises(ValueError, match="Of a view"):
        read("-- keep: no", "macro")


def test_whoever_changes_rows_of_runs_forgets_their_metrics():
    """Fails when a module starts to write raw tables: call forget_metrics in the same transaction."""
    statement = re.compile(r"\b(?:insert into|delete from|update(?= \S+ set)) ([\w{}.]+)")
    no_rows_of_runs = {*NOT_OF_RUNS, "schema_version"}
    package = Path(__file__).parents[2]
    writers = {}
    for file in sorted(path for folder in ("assayline", "flows", "tasks") for path in (package / folder).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if set(statement.findall(text)) - no_rows_of_runs and file.name != "metrics.py":
            writers[file.name] = text.count("forget_metrics(connection")
    # thread.py fills the database from a stand-in, and calls `delete_run` first.
    assert writers == {"ingest.py": 1, "runs.py": 3, "scoring.py": 1, "thread.py": 0}


def test_the_metric_table_at_a_runs_end_is_the_one_that_is_read_later(runs):
    """At its end a run is staged and kept at once: nothing may be there twice."""
    loads = [run_id for (run_id,) in runs.execute("select run_id from loads order by run_id").fetchall()]
    assert loads
    for run_id in (loads[0], "run-000000"):
        with stage_run(runs, run_id):
            assert keep_metrics(runs, run_id)
            at_the_end = read_metric_table(runs, run_id)
        assert at_the_end == read_metric_table(runs, run_id)
        names = [row["metric"] for row in at_the_end]
        assert len(set(names)) == len(names)
        assert ("sent late, p99" in names) == (run_id == loads[0])

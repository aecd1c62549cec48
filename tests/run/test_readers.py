"""Other programs and commands that hold the database while a run is under way."""

import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flow_kit import database_held
from run_kit import PATIENCE_S, complete, lose_answers, query, wait_for, work

from assayline import evaluate
from assayline.engines.fake import FakeEngine
from assayline.errors import DatabaseLockedError
from assayline.run.begin import begin_evaluation
from assayline.run.evaluation import read_result
from assayline.settings import Settings

pytestmark = pytest.mark.slow

READER = """
import os, sys, time, duckdb
while True:
    try:
        with duckdb.connect(sys.argv[1], read_only=True) as connection:
            query = "select count(*) filter (status = 'ok') from request"
            print(connection.execute(query).fetchall()[0][0], flush=True)
    except duckdb.IOException as error:
        if "Could not set lock" not in str(error) and os.path.exists(sys.argv[1]):
            raise
    time.sleep(0.4)
"""
"""A dashboard: a short connection now and then, tried again when a run is writing. Prints how much is answered."""
COMMANDS = """
import contextlib, io, json, sys, threading, urllib.request
from assayline.flows.cli import run
from assayline.settings import load_settings
from assayline.view.server import serve

for name, *arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        code = run(name, arguments)
    print(name, code, flush=True)

def show(url):
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    threading.Thread(target=lambda: print(browser.open(url).status, flush=True)).start()

serve(load_settings(), "127.0.0.1", 0, "/", show)
"""
"""Commands of a user, and then the viewer."""


def test_run_is_resumed_and_completes_while_a_shell_stays_open(make_spec: Any, settings: Settings) -> None:
    spec = make_spec(engine={"backend": "fake"}, prompts={"limit": 30})
    first = begin_evaluation(spec, settings)
    counts = first.prepare()
    work(first)
    lose_answers(first, 8)
    assert first.try_load() is None
    with database_held(settings.data_dir, read_only=True) as (_, answers):
        assert answers == 22, "the shell reads what was loaded"
        assert isinstance(first.try_load(), DatabaseLockedError), "the middle of a run copies nothing"
        first.abandon("cancelled")
        again = begin_evaluation(spec, settings)
        assert again.run_id == first.run_id and again.earlier and again.earlier.answered == 22
        again.prepare()
        work(again)
        result = again.finish(counts)
        assert result.metrics and result.database == str(settings.database_path)
        counted = "(select count(*) from completions), (select count(*) > 0 from metric_values)"
        state = f"select attempt, state, {counted} from runs"
        assert query(settings, state) == [(2, "completed", 30, True)], "the next reader sees the end"
    assert read_result(again.manifest, settings) == result


def test_run_is_neither_blocked_nor_broken_by_short_readers(
    make_spec: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    step = FakeEngine._step

    answered: list[Any] = []

    def step_until_half_is_to_be_seen(self: FakeEngine, live: list[Any]) -> Any:
        if len(answered) >= 40:
            wait_for(lambda: any(counts), "the reader sees some")
        answers = [*step(self, live)]
        answered.extend(answers)
        return iter(answers)

    monkeypatch.setattr(FakeEngine, "_step", step_until_half_is_to_be_seen)
    spec = make_spec(engine={"backend": "fake", "max_concurrency": 8}, prompts={"limit": 80})
    settings = settings.model_copy(update={"flush_interval_s": 0.05, "load_interval_s": 0.2})
    command = [sys.executable, "-c", READER, str(settings.database_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        watching = threading.Thread(target=lambda: [counts.append(int(line)) for line in reader.stdout or ()])
        watching.start()
        try:
            result = evaluate(spec, settings=settings)
            wait_for(lambda: counts[-1:] == [80], "the reader sees the end")
            assert reader.poll() is None
        finally:
            reader.kill()
            watching.join()
    assert result.database == str(settings.database_path) and result.notes == []
    assert counts == sorted(counts) and 0 < next(filter(None, counts)) < 80, "it saw the run grow"


HOLDER = """
import sys
from pathlib import Path
from assayline.export import make
from assayline.settings import Settings
from assayline.store.thread import DatabaseThread

def hold(*arguments):
    print("holds", flush=True)
    sys.stdin.readline()
    sys.exit()

settings = Settings(data_dir=Path(sys.argv[1]))
make.FORMATS["lm-eval"] = ("out", hold)
make.export_run(settings, sys.argv[2], "lm-eval") if sys.argv[3] == "exports" else DatabaseThread(settings).run(hold)
"""
"""An assayline command that is in the middle of its work until its input ends."""


@pytest.mark.parametrize("other", ["exports", "writes"])
def test_run_with_all_answers_completes_while_another_command_works(
    make_spec: Any, settings: Settings, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    spec = make_spec(engine={"backend": "fake"}, prompts={"limit": 12})
    settings = settings.model_copy(update={"database_wait_s": 0.2})
    first = complete(spec, settings).run_id
    evaluation = begin_evaluation(spec, settings, "never")
    counts = evaluation.prepare()
    work(evaluation)
    command = [sys.executable, "-c", HOLDER, str(settings.data_dir), first, other]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder,
        ThreadPoolExecutor(1) as ending,
    ):
        try:
            assert holder.stdout and holder.stdout.readline() == "holds\n"
            ended = ending.submit(evaluation.finish, counts)
            if other == "writes":
                waits = "Waiting for the database: "
                wait_for(lambda: ended.done() or caplog.text.count(waits) > 1, "the run waits for the command")
                assert not ended.done() and f"process {holder.pid} on" in caplog.text
                holder.kill()
            ended.result(PATIENCE_S)
        finally:
            holder.kill()
    assert query(settings, "select state, ok_requests from run") == [("completed", 12)] * 2


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_user_who_can_only_read_the_data_folder_compares_judges_reports_exports_and_views(
    make_spec, settings, tmp_path
):
    spec = make_spec(engine={"backend": "fake"}, prompts={"limit": 12})
    run_id, other = complete(spec, settings).run_id, complete(spec, settings).run_id
    names = sorted(path.relative_to(settings.data_dir) for path in settings.data_dir.rglob("*"))
    (out := tmp_path / "out").mkdir()
    commands = [
        ("compare", run_id, other),
        ("gate", run_id, "--baseline", other, "--dry-run"),
        ("report", run_id, "--out", f"{out}/report"),
        ("export", run_id, "--format", "eee", "--output", f"{out}/eee"),
        ("list runs",),
        ("baseline", "pin", "stable", run_id),
    ]
    box = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", settings.data_dir, settings.data_dir]
    box += ["--setenv", "ASSAYLINE_DATA_DIR", settings.data_dir]
    with subprocess.Popen(
        [*box, sys.executable, "-c", COMMANDS, json.dumps(commands)], text=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        ends = [process.stdout.readline() for _ in range(len(commands) + 1)]
        process.kill()
    assert ends == [*(f"{name} 0\n" for name, *_ in commands[:-1]), "baseline 6\n", "200\n"], ends
    assert (out / "report" / "report.html").exists() and any(out.glob("eee/**/*.json"))
    assert sorted(path.relative_to(settings.data_dir) for path in settings.data_dir.rglob("*")) == names

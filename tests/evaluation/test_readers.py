"""Other programs that read the database while a run is under way."""

import subprocess
import sys
import threading
from typing import Any

import pytest
from flow_kit import database_held
from run_kit import query, wait_for, work

from assayline import evaluate
from assayline.engines.fake import FakeEngine
from assayline.errors import DatabaseLockedError
from assayline.evaluation.begin import begin_evaluation
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


def test_run_completes_when_a_shell_is_opened_in_its_middle_and_stays_open(make_spec: Any, settings: Settings) -> None:
    spec = make_spec(engine={"backend": "fake"}, prompts={"limit": 30})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    work(evaluation)
    assert evaluation.try_load() is None
    with database_held(settings.data_dir, read_only=True) as (_, answers):
        assert answers == 30, "the shell reads what was loaded"
        assert isinstance(evaluation.try_load(), DatabaseLockedError), "the middle of a run copies nothing"
        result = evaluation.finish(counts)
        assert result.metrics and result.database == str(settings.database_path)
        state = "select state, (select count(*) from completions), (select count(*) > 0 from metric_values) from runs"
        assert query(settings, state) == [("completed", 30, True)], "the next reader sees the end"


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

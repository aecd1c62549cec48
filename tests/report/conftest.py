"""Databases to report on: invented runs, and runs of every sad kind, made from rows."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from assayline.settings import Settings  # noqa: E402
from assayline.store.database import connect  # noqa: E402
from examples import two_weeks  # noqa: E402

NIGHT_BEFORE, NIGHT = "20261114-013000-nightly-0001", "20261121-013000-nightly-0002"

RUN = {
    "prompt_set": "set",
    "model": "model",
    "spec_hash": "hash",
    "assayline_version": "0",
    "host_name": "host",
    "attempt": 1,
    "started_at": datetime(2026, 1, 1),
}


@pytest.fixture(scope="session")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The two nights of examples/two_weeks.py."""
    folder = tmp_path_factory.mktemp("weeks")
    nights = tuple(night for night in two_weeks.NIGHTS if night.benchmark_id is None)
    return Settings(data_dir=folder, database=two_weeks.make_database(folder, nights))


class Sad:
    """A database for runs made by hand: a state, and one prompt, request and answer per row given."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def given(self, run_id: str, state: str, *answers: dict[str, Any], message: str | None = None) -> None:
        spec = {"sampling": {}, "engine": {"args": {}, "backend": "fake", "mode": "continuous"}, "workers": 1}
        run = {**RUN, "name": f"name of {run_id}", "state": state, "message": message, "spec_json": json.dumps(spec)}
        with connect(self.settings.database_path, 10) as connection:

            def insert(table: str, **values: Any) -> None:
                names, marks = ", ".join(values), ", ".join("?" * len(values))
                connection.execute(f"insert into {table} ({names}) values ({marks})", list(values.values()))

            insert("runs", run_id=run_id, expected_requests=len(answers), **run)
            for i, answer in enumerate(answers):
                score, rendered = answer.pop("score", None), answer.pop("rendered", f"prompt {i}")
                target = answer.pop("target", None)
                keys = {"run_id": run_id, "prompt_id": f"p{i}", "occurrence": 0}
                insert("prompts", **keys, source_row=i, messages_json="[]", target=target, metadata_json="{}")
                insert("requests", **keys, request_id=f"r{i}", repeat_index=0, sampling_json="{}", rendered=rendered)
                if answer:
                    known = {"run_id": run_id, "worker": "worker-0", "engine_generation": 0, "window_requests": 8}
                    insert("completions", **known, request_id=f"r{i}", **answer)
                if score is not None:
                    insert("scores", **keys, scorer="exact_match", repeat_index=0, value=score, extracted="x")
            if any(True for _ in answers):
                insert(
                    "scorers",
                    run_id=run_id,
                    scorer="exact_match",
                    kind="exact_match",
                    ordinal=0,
                    arguments_json="{}",
                    assayline_version="0",
                    scored_at=datetime(2026, 1, 1),
                )


@pytest.fixture
def sad(settings: Settings) -> Iterator[Sad]:
    yield Sad(settings)


def text_of(path: Path) -> str:
    """A page without its scripts and style: what a person can read of it."""
    import re

    text = path.read_text(encoding="utf-8")
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S)

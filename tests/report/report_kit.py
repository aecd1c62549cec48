"""Runs to report on: names of invented ones, and runs of every sad kind, made from rows."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from assayline.settings import Settings
from assayline.store.database import connect

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
                    insert("completions", **{**known, "request_id": f"r{i}", **answer})
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


def text_of(path: Path) -> str:
    """A page without its scripts and style: what a person can read of it."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S)
